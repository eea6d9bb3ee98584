"""The acceptance rule for numerical results.

With O the float64 oracle, N a plain run of the reference in the dtype under test, and X the result:
X is accepted when ``max|X - O| <= 2 max|N - O| + e`` and the same in root mean square, where e is a
small share of ``max|O|``. An implementation may be twice as far from the truth as plain
arithmetic in its own precision, and no further.
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
"""The share of max|O| that is added to the bound, by dtype."""


@dataclass(frozen=True)
class Verdict:
    """Whether a result was accepted, and the figures that decided.

    Attributes:
        accepted: whether both bounds hold and nothing is NaN that should not be.
        worst: max|X - O|; NaN where X has a NaN that O has not, infinite where shapes differ.
        allowed: the bound on ``worst``.
        rms: root mean square of X - O.
        allowed_rms: the bound on ``rms``.
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
        """The worst error divided by its bound; at most 1 when accepted."""
        return self._worst_in(self.allowed)

    @property
    def roundings(self) -> float:
        """The worst error in units of rounding."""
        return self._worst_in(self.rounding)

    def _worst_in(self, unit: float) -> float:
        if self.worst == 0:
            return 0.0
        return self.worst / unit if unit else float("inf")


Evidence = tuple[str, Verdict]  # a trial by its name, and its verdict


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
        AssertionError: if it is not; the message has the figures.
    """
    verdict = judge(result, plain, oracle)
    if not verdict.accepted:
        raise AssertionError(
            f"max|X-O| = {verdict.worst:.3e}, allowed {verdict.allowed:.3e}; "
            f"rms = {verdict.rms:.3e}, allowed {verdict.allowed_rms:.3e}; "
            f"shapes {tuple(result.shape)} and {tuple(oracle.shape)}"
        )


def _error(values: Tensor, exact: Tensor) -> Tensor:
    """values - exact, 0 where both are the same infinity; NaN where exactly one is NaN."""
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


Leaves = Mapping[str, Tensor]  # tensors to differentiate by, by name


def gradients(output: Tensor, leaves: Leaves, *, again: bool = True) -> dict[str, Tensor]:
    """The gradient of a fixed weighted sum of the output; 0 where a leaf has no influence.

    With `again` the graph is kept for other gradients, which `torch.compile` does not allow.
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
    """Judge every gradient; all three outputs depend on the same leaves.

    The gradient of the oracle is rounded to the leaf's dtype, which the bound covers. A gradient
    that is exactly 0, such as that of a key's bias, is noise in finite precision; it is judged on
    the scale of the largest gradient.
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
    """The reference in the call's dtype, and in float64."""
    return reference(call, call.q.dtype), reference(call)
