"""How a target is constructed and called is found by trying, whatever its arguments are called."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.errors import BadFile, BadValue
from headwise.verify import verify
from headwise.verify.target import NotRecognised, load
from headwise.verify.target.calls.documented import documented_meaning
from headwise.verify.target.stated import Stated, stated_arguments


class Plain(nn.Module):
    """A right attention, one method a step, for others to change."""

    def __init__(self, breadth, crowd):
        super().__init__()
        self.crowd = crowd
        self.q, self.k, self.v, self.w_concat = (nn.Linear(breadth, breadth) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.crowd, -1)).transpose(1, 2)

    def scores(self, x):
        q, k = self.split(self.q(x)), self.split(self.k(x))
        return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])

    def mixed(self, scores, x):
        y = scores.softmax(-1) @ self.split(self.v(x))
        return self.w_concat(y.transpose(1, 2).flatten(-2))

    def forward(self, x):
        return self.mixed(self.scores(x), x)


class OddMask(Plain):
    """(q, k, b), 1 = may attend, as an integer, under another name."""

    def forward(self, x, m=None):
        scores = self.scores(x)
        if m is not None:
            scores = scores.masked_fill(m.permute(2, 0, 1)[:, None] == 0, -torch.inf)
        return self.mixed(scores, x)


class BothSides(Plain):
    """A padding mask of queries and keys; padded queries give 0."""

    def forward(self, x, valid=None):
        scores = self.scores(x)
        if valid is not None:
            both = valid[:, None, :, None] & valid[:, None, None, :]
            scores = scores.masked_fill(~both, -1e9)
        y = self.mixed(scores, x)
        return y if valid is None else y * valid[..., None]


class Single(Plain):
    """One sample (L, E)."""

    def split(self, x):
        return x.unflatten(-1, (self.crowd, -1)).transpose(0, 1)

    def forward(self, x):
        y = self.scores(x).softmax(-1) @ self.split(self.v(x))
        return self.w_concat(y.transpose(0, 1).flatten(-2))


class Fixed(Plain):
    """Asserts that keys and queries have the same shape."""

    def forward(self, query, key, value):
        assert key.shape == query.shape == value.shape
        q, k, v = self.split(self.q(query)), self.split(self.k(key)), self.split(self.v(value))
        y = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        return self.w_concat(y.transpose(1, 2).flatten(-2))


class InTurn(Plain):
    """Head h has every H-th feature, in the split and in the merge."""

    def split(self, x):
        return x.unflatten(-1, (-1, self.crowd)).permute(0, 3, 1, 2)

    def mixed(self, scores, x):
        y = scores.softmax(-1) @ self.split(self.v(x))
        return self.w_concat(y.permute(0, 2, 3, 1).flatten(-2))


class Normed(Plain):
    """With norms of queries and keys it is more than the definition."""

    def __init__(self, breadth, crowd):
        super().__init__(breadth, crowd)
        self.tune = nn.Parameter(torch.rand(crowd, 1, 1) + 0.5)

    def scores(self, x):
        return super().scores(x) * self.tune


class Constant(Plain):
    def scores(self, x):
        q, k = self.split(self.q(x)), self.split(self.k(x))
        return q @ k.transpose(-2, -1) * 0.5


class Coincident(Plain):
    """1/sqrt(5), right at the first size only."""

    def scores(self, x):
        q, k = self.split(self.q(x)), self.split(self.k(x))
        return q @ k.transpose(-2, -1) * 5**-0.5


class Weak(Plain):
    def forward(self, x, mask=None):
        scores = self.scores(x)
        return self.mixed(scores if mask is None else scores.masked_fill(~mask, -100.0), x)


class Stale(Plain):
    """The mask of one call stays."""

    kept = None

    def forward(self, x, mask=None):
        if mask is not None:
            self.kept = mask
        scores = self.scores(x)
        if self.kept is not None and self.kept.shape == scores.shape[2:]:
            scores = scores.masked_fill(~self.kept, -torch.inf)
        return self.mixed(scores, x)


class Backwards(Plain):
    def forward(self, x):
        n = x.shape[1]
        return self.mixed(self.scores(x).masked_fill(torch.ones(n, n).tril(-1).bool(), -1e9), x)


@pytest.mark.parametrize("cls", [Plain, OddMask, BothSides, Single, Fixed, InTurn])
def test_a_right_attention_is_accepted_under_any_names(cls) -> None:
    report = verify(cls, cls.__name__)
    assert [f"{f.check.name}: {f.failed}" for f in report.findings if not f.passed] == []
    assert report.status == "accepted"
    assert "out" not in report.conventions.runner.lacks


def test_what_is_more_than_the_definition_is_unproven() -> None:
    report = verify(Normed)
    assert report.status == "unproven"
    assert "tune" in str(report.not_compared)


@pytest.mark.parametrize(
    ("cls", "mistake"),
    [
        (Constant, "scale_constant"),
        (Coincident, "scale_constant"),
        (Weak, "mask_weak_for_large_scores"),
        (Stale, "mask_stays"),
        (Backwards, "causal_reversed"),
    ],
)
def test_a_mistake_of_its_kind_is_named(cls, mistake: str) -> None:
    report = verify(cls, cls.__name__)
    assert report.status == "differs"
    assert mistake in {m.name for group in report.mistakes for m in group}


def test_the_number_of_a_constant_scale_is_said() -> None:
    report = verify(Constant)
    assert "0.5 instead of 1/sqrt(head_dim) = 0.4472" in report.mistakes[0][0].says.en


def test_a_stated_convention_is_held() -> None:
    report = verify(OddMask, stated=Stated(mask_true="blocked"))
    assert report.status != "accepted"
    report = verify(Plain, stated=Stated(causal=True))
    assert [m.name for group in report.mistakes for m in group] == ["mask_ignored"]
    report = verify(Plain, stated=Stated(arguments={"breadth": 24, "crowd": 3}), embed_dim=24)
    assert report.status == "accepted"


def test_arguments_are_stated_as_name_and_value() -> None:
    assert stated_arguments(["a=1", "b=no", "c=None"]) == {"a": 1, "b": "no", "c": None}
    with pytest.raises(BadValue, match="set: expected name=value, got '1=a'"):
        stated_arguments(["1=a"])


class Stubborn(nn.Module):
    def __init__(self, alpha):
        super().__init__()
        raise TypeError(f"no {alpha}")

    def forward(self, x):
        return x


def test_a_constructor_that_is_not_solved_offers_an_instance() -> None:
    with pytest.raises(NotRecognised, match=r"--set alpha=15, or write attn = Stubborn\(15\)"):
        verify(Stubborn)


SOURCE = """\
import math
import torch
from torch import nn
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        y = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).flatten(-2))
"""


def test_a_notebook_is_a_target(tmp_path: Path) -> None:
    cells = ["%matplotlib inline\n!ls", "raise OSError('no data')", SOURCE, "print(undefined)"]
    content = [{"cell_type": "code", "source": text} for text in cells]
    path = tmp_path / "notes.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "#"}, *content]}))
    assert verify(load(f"{path}:Attention"), f"{path}:Attention").status == "accepted"
    with pytest.raises(BadFile, match=r"write .*notes\.ipynb:Attention; it has Attention"):
        load(str(path))
    path.write_text("[]")
    with pytest.raises(BadFile, match="is no notebook"):
        load(f"{path}:Attention")


def test_relative_imports_and_folders_above_are_found(tmp_path: Path) -> None:
    inner = tmp_path / "project_of_mine" / "parts"
    inner.mkdir(parents=True)
    (tmp_path / "project_of_mine" / "sizes_of_mine.py").write_text("D = 1\n")
    (inner / "__init__.py").write_text("import nothing_of_the_kind\n")
    (inner / "attn.py").write_text(SOURCE)
    (inner / "use.py").write_text(
        "from .attn import Attention\nfrom project_of_mine.sizes_of_mine import D\n"
    )
    assert load(f"{inner / 'use.py'}:Attention").__name__ == "Attention"


def test_a_missing_package_is_named_with_its_installation(tmp_path: Path) -> None:
    path = tmp_path / "needs.py"
    path.write_text("import sklearn_of_nobody.tree\n")
    with pytest.raises(BadFile, match="pip install sklearn-of-nobody"):
        load(f"{path}:f")


def says_blocked(q, k, v, mask=None):
    """mask: (B, L) bool, True at padding."""
    return v


def says_both(q, k, v, mask=None):
    """mask: 1 for real tokens, 0 for padding."""
    return v


def says_nothing(q, k, v, mask=None):
    """The mask is optional; 1 head is enough."""
    return v


@pytest.mark.parametrize(
    ("function", "meaning"),
    [(says_blocked, "blocked"), (says_both, "attend"), (says_nothing, None)],
)
def test_what_the_text_says_of_a_mask(function, meaning) -> None:
    assert documented_meaning(function, "mask", alone=True) == meaning
