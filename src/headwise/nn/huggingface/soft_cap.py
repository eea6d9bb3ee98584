"""Logit soft-capping: scores s become c tanh(s / c) before the mask is applied.

The capped scores are a bias on scores of 0. Where a gradient is needed the bias is a tensor
(B, H, Lq, Lk); otherwise it is computed block by block, as the bias of a position is, so that no
engine holds all of it.

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
    """The capped scores value · tanh(scale · q kᵀ / value)."""

    value: float
    scale: float

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Of queries (B, H, n, D) and keys (B, G, m, D): (B, H, n, m), in float32 at least."""
        dtype = softmax_dtype(q.dtype)
        keys = k.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], 1)
        return self.value * torch.tanh(q.to(dtype) @ keys.mT * (self.scale / self.value))


class SoftCap(Position):
    """The capped scores of one call, as a bias on scores of 0.

    Args:
        q: (B, H, Lq, D).
        k: (B, G, Lk, D).
        cap: the cap and the scale.
        offset: the position of the first query.
    """

    stages = frozenset({Stage.SCORES})

    def __init__(self, q: Tensor, k: Tensor, cap: Cap, offset: int) -> None:
        super().__init__()
        self.q, self.k, self.cap, self.offset = q, k, cap, offset

    def bias(self, q: Tensor, query: PositionIds, key: PositionIds, scale: float) -> Tensor:
        del scale  # part of the cap; q is 0
        if q.shape[:2] != self.q.shape[:2]:
            raise BadValue(
                "softcap: expected all samples and heads at once, {expected}, got {got}; use "
                "engine='tiled', 'eager' or 'sdpa'",
                expected=tuple(self.q.shape[:2]),
                got=tuple(q.shape[:2]),
            )
        rows = (query - self.offset).clamp(0, self.q.shape[2] - 1)
        return self.cap.scores(self.q.index_select(2, rows), self.k.index_select(2, key))

    def extra_repr(self) -> str:
        return f"{self.cap.value}"


def capped(
    q: Tensor, k: Tensor, mask: Mask, offset: int | None, cap: Cap
) -> tuple[Tensor, Mask, Position | None]:
    """The arguments of `attend` for capped scores: queries of 0, a mask, a position or None."""
    zeros = torch.zeros_like(q)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        return zeros, mask & FromTensor(cap.scores(q, k), "b h q k"), None
    first = k.shape[2] - q.shape[2] if offset is None else offset
    return zeros, mask, SoftCap(q, k, cap, first)
