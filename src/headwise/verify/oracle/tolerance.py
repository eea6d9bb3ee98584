"""The acceptance rule for numerical results.

With O the float64 oracle, N a plain run of the reference in the dtype under test, and X the result:
X is accepted if ``max|X - O| <= 2 max|N - O| + e`` and the same holds for root mean squares, where
e is a small fraction of ``max|O|``. So the error of an implementation may be twice that of plain
arithmetic in the same precision, but not larger.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.reference import Steps, reference
from headwise.verify.oracle import oracle
from headwise.verify.oracle.jobs import Job, Outcome

FACTOR = 2.0
"""The largest allowed ratio of a result's error to that of a plain run in the same dtype."""

SLACK = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""The fraction of max|O| that is added to the tolerance, by dtype."""


@dataclass(frozen=True)
class Verdict:
    """Whether a result was accepted, with the errors and tolerances that decided.

    Attributes:
        accepted: whether both errors are within tolerance and no number is wrongly NaN.
        worst: max|X - O|; NaN if X is NaN where O is not, infinite if the shapes differ.
        allowed: the tolerance for ``worst``.
        rms: root mean square of X - O.
        allowed_rms: the tolerance for ``rms``.
        rounding: the spacing of numbers of the dtype at the largest exact value; 0 if unknown.
    """

    accepted: bool
    worst: float
    allowed: float
    rms: float
    allowed_rms: float
    rounding: float = 0.0

    @property
    def times(self) -> float:
        """The worst error divided by its tolerance; at most 1 if accepted."""
        return self._worst_in(self.allowed)

    @property
    def roundings(self) -> float:
        """The worst error in rounding units."""
        return self._worst_in(self.rounding)

    def _worst_in(self, unit: float) -> float:
        if self.worst == 0:
            return 0.0
        return self.worst / unit if unit else float("inf")


Evidence = tuple[str, Verdict]  # the name of a trial and its verdict


def judge(result: Tensor, plain: Tensor, oracle: Tensor) -> Verdict:
    """Compare a result with the oracle by the acceptance rule.

    Args:
        result: X, in the dtype under test.
        plain: N, the reference run in that dtype.
        oracle: O, in float64.

    Example:
        >>> exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
        >>> judge(exact.float(), exact.float(), exact).accepted
        True
        >>> judge(exact.float() + 1e-3, exact.float(), exact).accepted
        False
    """
    if result.shape != oracle.shape:
        return Verdict(False, float("inf"), 0.0, float("inf"), 0.0)
    if not oracle.numel():
        return Verdict(True, 0.0, 0.0, 0.0, 0.0)
    exact = oracle.detach().double()
    error, noise = _error(result, exact), _error(plain, exact)
    finite = exact[exact.isfinite()]
    largest = finite.abs().max().item() if finite.numel() else 0.0
    slack, rounding = SLACK[result.dtype] * largest, torch.finfo(result.dtype).eps * largest
    worst, rms = error.abs().max().item(), error.square().mean().sqrt().item()
    allowed = FACTOR * noise.abs().max().item() + slack
    allowed_rms = FACTOR * noise.square().mean().sqrt().item() + slack
    good = worst <= allowed and rms <= allowed_rms
    return Verdict(good, worst, allowed, rms, allowed_rms, rounding)


def accept(result: Tensor, plain: Tensor, oracle: Tensor) -> None:
    """Assert that a result is accepted.

    Raises:
        AssertionError: if it is not; the message gives the errors and tolerances.
    """
    verdict = judge(result, plain, oracle)
    if not verdict.accepted:
        raise AssertionError(
            f"max|X-O| = {verdict.worst:.3e}, allowed {verdict.allowed:.3e}; "
            f"rms = {verdict.rms:.3e}, allowed {verdict.allowed_rms:.3e}; "
            f"shapes {tuple(result.shape)} and {tuple(oracle.shape)}"
        )


def _error(values: Tensor, exact: Tensor) -> Tensor:
    """Return values - exact; 0 where both are the same infinity, NaN where just one is NaN."""
    wide = values.detach().double()
    same = (wide == exact) | (wide.isnan() & exact.isnan())
    return torch.where(same, 0.0, wide - exact)


def judge_output(result: Result, call: Call) -> Verdict:
    """Judge the output of a call."""
    return judge(result.output, reference(call, call.q.dtype).output, reference(call).output)


def judge_job(outcome: Outcome, job: Job) -> Verdict:
    """Judge the output of a module."""
    plain, exact = oracle(job, job.query.dtype), oracle(job)
    return judge(outcome.output, plain["output"], exact["output"])


Leaves = Mapping[str, Tensor]  # the tensors with respect to which to differentiate, by name


def gradients(output: Tensor, leaves: Leaves, *, again: bool = True) -> dict[str, Tensor]:
    """Differentiate a fixed weighted sum of the output; 0 for a leaf without influence.

    If `again` is true, the graph is kept for further gradients; `torch.compile` forbids that.
    """
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    if not output.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    tensors, cotangent = list(leaves.values()), cotangent.to(output.dtype)
    result = torch.autograd.grad(
        output, tensors, cotangent, retain_graph=again, allow_unused=True, materialize_grads=True
    )
    return dict(zip(leaves, result, strict=True))


def judge_gradients(
    output: Tensor, plain: Tensor, exact: Tensor, leaves: Leaves, *, again: bool = True
) -> Iterator[Evidence]:
    """Judge the gradient of every leaf; all three outputs must depend on the same leaves.

    The oracle's gradient is rounded to the dtype of the leaf; the tolerance allows for that. A
    gradient whose exact value is 0, such as that of the key bias, is only rounding noise, so it is
    judged relative to the largest gradient.
    """
    result = gradients(output, leaves, again=again)
    rough, right = (gradients(item, leaves) for item in (plain, exact))
    largest = max((g.abs().max() for g in right.values() if g.numel()), default=torch.zeros(()))
    for name, gradient in result.items():
        anchor = largest.reshape(1).to(gradient.dtype)
        x, n, o = (
            torch.cat((g.flatten(), anchor)) for g in (gradient, rough[name], right[name].double())
        )
        yield name, judge(x, n, o.double())


def steps_of(call: Call) -> tuple[Steps, Steps]:
    """Run the reference in the dtype of the call and in float64."""
    return reference(call, call.q.dtype), reference(call)
