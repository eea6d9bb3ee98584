"""Differences under `torch.compile` are reported with `compiled=True`."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headwise.verify import verify
from headwise.verify.target import load

TARGETS = Path(__file__).parent / "targets"


def sly(q, k, v):
    """Right, but for what a compiler sees."""
    right = F.scaled_dot_product_attention(q, k, v)
    return right * 1.01 if torch.compiler.is_compiling() else right


class Frozen(nn.Module):
    """A compiler takes the first length for the only one, since it is told so."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        return self.out(y if x.shape[1] < 9 or not torch.compiler.is_compiling() else y.detach())


def failed(report):
    return [finding.check.name for finding in report.findings if not finding.passed]


def test_it_is_not_tried_unless_asked_for() -> None:
    report = verify(sly)
    assert report.accepted
    assert "compiled_equals" not in [finding.check.name for finding in report.findings]


def test_a_function_that_differs_is_caught() -> None:
    assert failed(verify(sly, compiled=True)) == ["compiled_equals"]


@pytest.mark.slow
def test_a_gradient_that_differs_at_another_length_is_caught() -> None:
    report = verify(Frozen, compiled=True)
    assert failed(report) == ["compiled_equals"]
    assert "gradient of" in report.findings[-1].failed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["right.py:Separate", "corpus/unnamed.py:Letters"])
def test_right_ones_are_right_under_it(name: str) -> None:
    report = verify(load(f"{TARGETS / name}"), compiled=True)
    assert report.accepted
    assert report.findings[-1].check.name == "compiled_equals"
    assert report.findings[-1].trials


def test_the_module_that_was_given_is_not_compiled() -> None:
    module = nn.MultiheadAttention(15, 3, batch_first=True)
    verify(module, compiled=True)
    assert module._compiled_call_impl is None


def test_arrays_cannot_be_compiled_and_are_left_out() -> None:
    report = verify(load(f"{TARGETS / 'corpus' / 'numpy_styles.py'}:by_einsum"), compiled=True)
    assert report.accepted
    assert "compiled_equals" not in [finding.check.name for finding in report.findings]
