"""What a mask is resolved against: queries and keys, and seeds drawn by an operator."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.shapes import AttentionShape


@dataclass(frozen=True, eq=False)
class Content:
    """What a mask that depends on q and k is resolved against.

    Attributes:
        q: (B, H, Lq, D) and ``k`` (B, G, Lk, D), as they meet in the scores.
        shape: the outer shape.
        real: (B, Lk), False on keys that the masks around hide from every query; None if none is.
    """

    q: Tensor
    k: Tensor
    shape: AttentionShape
    real: Tensor | None = None

    def counts(self) -> list[int]:
        """How many keys of each sample are not hidden."""
        if self.real is None:
            return [self.shape.keys] * self.shape.batch
        return [int(count) for count in self.real.sum(-1).tolist()]

    def samples(self, chosen: list[int]) -> "Content":
        """Some samples of the batch."""
        real = None if self.real is None else self.real[chosen]
        shape = replace(self.shape, batch=len(chosen))
        return Content(self.q[chosen], self.k[chosen], shape, real)


def needs_operator() -> bool:
    """Whether `torch.compile` traces, or `torch.func` maps or differentiates, what runs now.

    The one cannot follow a generator that is made on the way, the other takes what is drawn from it
    for randomness that its caller did not ask for. An operator is one node for both.
    """
    if torch.compiler.is_dynamo_compiling():
        return True
    active: Callable[[], bool] | None = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is not None and active()
