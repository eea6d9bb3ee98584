"""The one rule by which a number is believed.

With O the float64 oracle, N a plain run of the reference in the dtype under test, and X the result:
X is accepted when ``max|X - O| <= 2 max|N - O| + e`` and the same in root mean square, where e is a
small share of ``max|O|``. An implementation may be twice as far from the truth as plain
arithmetic in its own precision, and no further.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FACTOR = 2.0
"""How much further from the oracle a result may be than a plain run in the same dtype."""

SLACK = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""The share of max|O| that is allowed on top, by dtype."""


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
        """How many times the bound the worst error is; at most 1 when accepted."""
        if self.worst == 0:
            return 0.0
        return self.worst / self.allowed if self.allowed else float("inf")

    @property
    def roundings(self) -> float:
        """The worst error in units of rounding."""
        if self.worst == 0:
            return 0.0
        return self.worst / self.rounding if self.rounding else float("inf")


def judge(result: Tensor, plain: Tensor, oracle: Tensor) -> Verdict:
    """Hold a result against the oracle by the rule of this file.

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
