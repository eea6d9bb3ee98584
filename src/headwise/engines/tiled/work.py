"""What the engine computes with: tensors that a position has turned, and what may be added."""

from dataclasses import dataclass

from torch import Tensor

from headwise.masks import Mask
from headwise.positions import Position
from headwise.positions.base import Far
from headwise.positions.relative import Relative
from headwise.shapes import Frame


@dataclass(frozen=True, eq=False)
class Work:
    """One attention as the engine sees it.

    Attributes:
        q, k, v: (B, H, Lq, D), (B, G, Lk, D), (B, G, Lk, Dv); last strides 1.
        asked: the queries as they were given, which a position's bias looks at; like q.
        mask: resolved for the frame.
        position: for its bias, and for what it adds to the values.
        scale: the factor on the scores.
        frame: the outer shape.
        relative: what the position's `relative` gives for every difference of a key and a query,
            from the least; None if it has none.
        far: what stands for k and v where a pair is far apart; None if nothing does.
        sinks: one more logit a head in every softmax, (H,); or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    asked: Tensor
    mask: Mask
    position: Position
    scale: float
    frame: Frame
    relative: Relative | None = None
    far: Far | None = None
    sinks: Tensor | None = None

    @property
    def least(self) -> int:
        """The least difference of a key and a query: the first of `relative`."""
        return 1 - self.frame.offset - self.frame.queries
