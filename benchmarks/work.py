"""What is measured: the same numbers for every contender, and who contends."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

import headwise as hw

HEADS, DIM = 8, 64
EMBED = HEADS * DIM

OURS, ROOF = "headwise", "matrix multiply"

FORWARD_AND_BACKWARD = 3.5
"""Times the FLOPs of a forward pass: two products there, five in the backward."""


@dataclass(frozen=True, eq=False)
class Work:
    """One attention: q, k, v (1, H, L, D), and the gradient of the output where it is wanted.

    The same random numbers in every dtype; whatever else a case needs is drawn from ``seed`` too.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor | None

    @classmethod
    def drawn(cls, length: int, dtype: torch.dtype, *, backward: bool) -> "Work":
        """q, k and v that want gradients if the backward pass is measured."""
        torch.manual_seed(0)
        drawn = torch.randn(4, 1, HEADS, length, DIM, dtype=torch.float64).to(dtype)
        q, k, v, grad = (part.clone() for part in drawn.unbind())
        if not backward:
            return cls(q, k, v, None)
        return cls(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad)

    def done(self, output: Tensor, learned: Iterable[Tensor] = ()) -> list[Tensor]:
        """The output (1, H, L, D); and the gradients of q, k, v and what is learned, if wanted."""
        if self.grad is None:
            return [output]
        leaves = (self.q, self.k, self.v, *learned)
        return [output.detach(), *torch.autograd.grad(output, leaves, self.grad)]


Run = Callable[[], list[Tensor]]
Contender = Callable[[Work], Run]
"""Made once for some numbers, then timed as often as needed."""


@dataclass(frozen=True)
class Asked:
    """What is asked of headwise in one case.

    Attributes:
        line: of the acceptance list that docs/benchmarks.md has.
        times: by peer, how many times faster it should be at least.
        roof: the least share of the machine's own matrix product, on the work's own FLOPs.
    """

    line: int
    times: Mapping[str, float] = field(default_factory=dict)
    roof: float | None = None


@dataclass(frozen=True)
class Case:
    """One comparison of time.

    Attributes:
        name: what a person calls it.
        asked: what should hold.
        length: L of the measurement.
        flops: of the work itself, forward.
        contenders: by name; `OURS` is one.
        exact: mask and position of what is computed, for the reference.
        same: the peers that compute exactly that; they are held to it too.
        backward: whether the backward pass is measured with it.
        gate: a small length at which everybody can be held to the reference.
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
    """Of all pairs."""
    return 4.0 * HEADS * DIM * length * length


def window_flops(left: int, right: int) -> Callable[[int], float]:
    """Of the pairs in a window, but for its edges."""
    return lambda length: 4.0 * HEADS * DIM * length * (left + right + 1)
