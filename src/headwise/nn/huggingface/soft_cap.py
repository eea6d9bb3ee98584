"""Soft caps: scores s that a model squeezes to c tanh(s / c) before its mask.

What is added to scores of 0 is then everything. Where a gradient is wanted it is written out,
(B, H, Lq, Lk); elsewhere it is made for some queries and some keys at a time, as a position's bias
is, so that no engine holds all of it.

Source: Gemma Team 2024 (Gemma 2), logit soft-capping.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.errors import BadValue
from headwise.masks import Mask
from headwise.masks.patterns.from_tensor import FromTensor
from headwise.positions import Position, Stage
from headwise.positions.position import PositionIds


@dataclass(frozen=True)
class Cap:
    """How scores are squeezed: value · tanh(scale · q kᵀ / value)."""

    value: float
    scale: float

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Of queries (B, H, n, D) and keys (B, G, m, D): (B, H, n, m), in float32 at least."""
        wide = softmax_dtype(q.dtype)
        keys = k.to(wide).repeat_interleave(q.shape[1] // k.shape[1], 1)
        return self.value * torch.tanh(q.to(wide) @ keys.mT * (self.scale / self.value))


class SoftCap(Position):
    """The capped scores of one call, as a bias on scores of 0.

    Args:
        q: (B, H, Lq, D), whose first stands at the offset.
        k: (B, G, Lk, D).
        cap: how the scores are squeezed.
        offset: where the first query stands.
    """

    stages = frozenset({Stage.SCORES})

    def __init__(self, q: Tensor, k: Tensor, cap: Cap, offset: int) -> None:
        super().__init__()
        self.q, self.k, self.cap, self.offset = q, k, cap, offset

    def bias(self, q: Tensor, query: PositionIds, key: PositionIds, scale: float) -> Tensor:
        del scale  # it is in the cap, and q is zeros
        if q.shape[:2] != self.q.shape[:2]:
            raise BadValue(
                "softcap: it is made for all samples and heads at once, {q_shape}, and "
                "was asked for {q_shape_2}; use engine='tiled', 'eager' or 'sdpa'",
                q_shape=tuple(self.q.shape[:2]),
                q_shape_2=tuple(q.shape[:2]),
            )
        rows = (query - self.offset).clamp(0, self.q.shape[2] - 1)
        asked, seen = self.q.index_select(2, rows), self.k.index_select(2, key)
        return self.cap.scores(asked, seen)

    def extra_repr(self) -> str:
        return f"{self.cap.value}"


def squeezed(
    q: Tensor, k: Tensor, mask: Mask, offset: int | None, cap: Cap
) -> tuple[Tensor, Mask, Position | None]:
    """What `attend` is given for capped scores: queries of 0, a mask, and a position or None."""
    zeros = torch.zeros_like(q)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        return zeros, mask & FromTensor(cap.scores(q, k), "b h q k"), None
    first = k.shape[2] - q.shape[2] if offset is None else offset
    return zeros, mask, SoftCap(q, k, cap, first)
