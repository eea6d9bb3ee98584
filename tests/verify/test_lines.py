"""The most likely line of a mistake in a file."""

from pathlib import Path

import pytest

from headwise.verify.diagnosis.source_line import likely_lines
from headwise.verify.mistakes import MISTAKES
from headwise.verify.target import load

NAMED = {mistake.name: mistake for mistake in MISTAKES}

SOURCE = '''\
import math
import torch
from torch import nn

NOTE = "softmax / sqrt(dim)"


def helper(q, k, v, dim):
    """softmax(q @ k / sqrt(dim)) @ v"""
    scores = q @ k.transpose(-2, -1)
    scores = scores / math.sqrt(dim)
    weights = scores.softmax(dim=-2)
    return weights @ v


class Attention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h, self.dim = num_heads, embed_dim
        self.q, self.k, self.v, self.o = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def heads(self, x):
        return x.view(x.shape[0], self.h, x.shape[1], -1)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        x = helper(q, k, v, self.dim)
        x = x.reshape(b, n, e)
        return self.o(x)


class Derived(Attention):
    def heads(self, x):
        return x.view(x.shape[0], x.shape[1], -1, self.h).permute(0, 3, 1, 2)


def unscaled(q, k, v, mask=None):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
    if mask is not None:
        scores = scores.masked_fill(
            mask,
            float("-inf"),
        )
    return scores.softmax(-1) @ v
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "theirs.py"
    path.write_text(SOURCE, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "mistake", "line"),
    [
        ("Attention", "scale_by_sqrt_embed", "scores = scores / math.sqrt(dim)"),
        ("Attention", "softmax_over_queries", "weights = scores.softmax(dim=-2)"),
        (
            "Attention",
            "split_without_transpose",
            "return x.view(x.shape[0], self.h, x.shape[1], -1)",
        ),
        ("Attention", "merge_without_transpose", "x = x.reshape(b, n, e)"),
        (
            "Derived",
            "heads_interleaved",
            "return x.view(x.shape[0], x.shape[1], -1, self.h).permute(0, 3, 1, 2)",
        ),
        ("unscaled", "no_scale", 'scores = torch.einsum("bhqd,bhkd->bhqk", q, k)'),
        ("unscaled", "mask_inverted", "scores = scores.masked_fill("),
    ],
)
def test_the_line_is_found(file: Path, name: str, mistake: str, line: str) -> None:
    found = likely_lines(load(f"{file}:{name}"), [NAMED[mistake]])[mistake]
    assert found.text == line
    assert found.file == str(file)
    assert SOURCE.splitlines()[found.number - 1].strip() == line


def test_an_instance_is_read_by_its_class(file: Path) -> None:
    module = load(f"{file}:Attention")(15, 3)
    found = likely_lines(module, [NAMED["scale_by_sqrt_embed"]])["scale_by_sqrt_embed"]
    assert found.text == "scores = scores / math.sqrt(dim)"


def test_what_has_no_source_has_no_line(file: Path) -> None:
    assert likely_lines(max, MISTAKES) == {}
    made: dict = {}
    exec("def made(q, k, v):\n    return v\n", made)  # noqa: S102
    assert likely_lines(made["made"], MISTAKES) == {}
    function = load(f"{file}:unscaled")
    file.unlink()
    assert likely_lines(function, MISTAKES) == {}
