"""The queries and keys that a mask which depends on them is resolved against."""

from dataclasses import dataclass, replace

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
