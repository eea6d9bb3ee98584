"""The code for a failure of gradients alone reproduces the failure when it is run."""

import pytest
import torch
from torch import nn

from headwise.verify import verify
from headwise.verify.diagnosis.snippet import differentiable, gradient
from headwise.verify.oracle.tolerance import judge
from headwise.verify.target.construction.candidates import runner
from headwise.verify.target.conventions import Runner
from headwise.verify.target.runners import FunctionRunner


def scores(q, k, mask):
    found = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return found if mask is None else found.masked_fill(~mask, -torch.inf)


def detached(q, k, v, mask=None):
    return scores(q, k, mask).softmax(-1).detach() @ v


class Module(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def weigh(self, q, k, mask):
        return scores(q, k, mask).softmax(-1)

    def forward(self, x, mask=None):
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj((self.weigh(q, k, mask) @ v).transpose(1, 2).flatten(2))


class Detached(Module):
    def weigh(self, q, k, mask):
        return super().weigh(q, k, mask).detach()


class LengthFirst(Detached):
    def forward(self, x, mask=None):
        return super().forward(x.transpose(0, 1), mask).transpose(0, 1)


class NanReplaced(Module):
    def weigh(self, q, k, mask):
        hidden = torch.zeros(()) if mask is None else torch.where(mask, 0.0, -torch.inf)
        return (scores(q, k, None) + hidden).softmax(-1).nan_to_num(0.0)


def adapter(x, weights, heads, mask=None):
    q, k, v = (
        nn.functional.linear(x, weight, bias).unflatten(-1, (heads, -1)).transpose(1, 2)
        for weight, bias in (
            (weights.q, weights.q_bias),
            (weights.k, weights.k_bias),
            (weights.v, weights.v_bias),
        )
    )
    merged = detached(q, k, v, mask).transpose(1, 2).flatten(2)
    return nn.functional.linear(merged, weights.out, weights.out_bias)


@pytest.mark.parametrize(
    ("target", "check"),
    [
        (detached, "module_gradients"),
        (Detached, "module_gradients"),
        (LengthFirst, "module_gradients"),
        (adapter, "module_gradients"),
        (NanReplaced, "masked_gradients"),
    ],
)
def test_the_snippet_of_a_gradient_fails_when_it_is_run(capsys, target, check: str) -> None:
    report = verify(target, "mine")
    assert [f.check.name for f in report.findings if not f.passed] == [check]
    (code,) = report.smallest.values()
    names = {"mine": target}
    exec(compile(code, "snippet", "exec"), names)  # noqa: S102 (it is ours)
    result, exact = names["result"], names["exact"]
    assert result.shape == exact.shape
    assert result.numel() <= 12
    assert not judge(result, exact, exact.double()).accepted
    assert "the gradient, and what is exact" in code
    assert "tensor" in capsys.readouterr().out


def test_a_gradient_that_nothing_hangs_on_is_0() -> None:
    x, unused = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    assert torch.equal(gradient(x, x), torch.full((3,), 2.0))
    assert torch.equal(gradient(x, x, unused)[1], torch.zeros(3))


def test_what_works_on_arrays_has_no_gradient_to_show() -> None:
    reading: Runner = runner(detached, "mine", 15, 3)
    assert isinstance(reading, FunctionRunner)
    assert differentiable(reading)
    reading = type(reading)(**{**vars(reading), "arrays": True})
    assert not differentiable(reading)
