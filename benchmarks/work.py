"""The data types of the benchmarks: the inputs of a case, its requirements and implementations."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

import headwise as hw

HEADS, DIM = 8, 64
EMBED = HEADS * DIM

OURS, ROOF = "headwise", "matrix product"

FORWARD_AND_BACKWARD = 3.5
"""FLOPs of both passes / FLOPs of the forward pass, which has 2 of the 7 matrix products."""


@dataclass(frozen=True, eq=False)
class Work:
    """The inputs of one attention: q, k, v (1, H, L, D), and the gradient of the output or None.

    The random numbers are the same in every dtype.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor | None

    @classmethod
    def drawn(cls, length: int, dtype: torch.dtype, *, backward: bool) -> "Work":
        """Sample the inputs; q, k and v require gradients if the backward pass is measured."""
        torch.manual_seed(0)
        drawn = torch.randn(4, 1, HEADS, length, DIM, dtype=torch.float64).to(dtype)
        q, k, v, grad = (part.clone() for part in drawn.unbind())
        if not backward:
            return cls(q, k, v, None)
        return cls(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad)

    def done(self, output: Tensor, learned: Iterable[Tensor] = ()) -> list[Tensor]:
        """Return the output (1, H, L, D) and, if measured, the gradients of all leaves."""
        if self.grad is None:
            return [output]
        leaves = (self.q, self.k, self.v, *learned)
        return [output.detach(), *torch.autograd.grad(output, leaves, self.grad)]


Run = Callable[[], list[Tensor]]
Contender = Callable[[Work], Run]
"""Prepares the run of an implementation on the inputs; the run is timed repeatedly."""


@dataclass(frozen=True)
class Asked:
    """The requirements of one case.

    Attributes:
        line: the number of the requirement in docs/benchmarks.md.
        times: the smallest required speedup over each other implementation, by name.
        roof: the smallest required share of the speed of a matrix product.
    """

    line: int
    times: Mapping[str, float] = field(default_factory=dict)
    roof: float | None = None


@dataclass(frozen=True)
class Case:
    """One comparison of time.

    Attributes:
        name: the name of the case on the page.
        asked: the requirements.
        length: L of the measurement.
        flops: returns the FLOPs at a length.
        contenders: the implementations by name, with `OURS` among them.
        exact: returns the mask and the position for the reference; None for no comparison.
        same: the other implementations that must agree with the reference.
        backward: whether the backward pass is also measured.
        gate: the length at which the results are compared with the reference.
    """

    name: str
    asked: Asked
    length: int
    flops: Callable[[int], float]
    contenders: Mapping[str, Contender]
    exact: Callable[[int], tuple[hw.Mask, hw.Position | None]] | None = None
    same: tuple[str, ...] = ()
    backward: bool = False
    gate: int = 1024


def dense_flops(length: int) -> float:
    """Return the forward FLOPs of attention over all pairs."""
    return 4.0 * HEADS * DIM * length * length


def window_flops(left: int, right: int) -> Callable[[int], float]:
    """Return a function for the forward FLOPs of a window, not reduced at the sequence ends."""
    return lambda length: 4.0 * HEADS * DIM * length * (left + right + 1)
