"""What the engine computes with: tensors that a position has turned, and what may be added."""

from dataclasses import dataclass

from torch import Tensor

from headwise.masks import Mask
from headwise.positions import Position
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
    """

    q: Tensor
    k: Tensor
    v: Tensor
    asked: Tensor
    mask: Mask
    position: Position
    scale: float
    frame: Frame
