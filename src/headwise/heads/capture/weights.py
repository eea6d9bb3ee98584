"""The attention weights of one block of queries, as a model computes them.

Everything a transformer adds to softmax(q kᵀ · scale) stands here once: who may attend, a bias
(T5, ALiBi), a soft cap (Gemma 2) and a learned sink (gpt-oss).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headwise.heads.capture.pattern import Pattern

STEP = 64
"""Keys are taken in whole runs of so many, which is what processors like."""


@dataclass(frozen=True, eq=False)
class Block:
    """The weights of some queries over the keys that one of them may attend to.

    Attributes:
        weights: (B, H, R, K), 0 where not allowed; float32 at least.
        allowed: (B, H or 1, R, K), True where the query may attend.
        rows: which queries.
        keys: which keys; none of these queries may attend to another.
    """

    weights: Float[Tensor, "b h r k"]
    allowed: Bool[Tensor, "b #h r k"]
    rows: slice
    keys: slice


@dataclass(frozen=True, eq=False)
class Terms:
    """What one attention of a model is computed from.

    Attributes:
        q: (B, H, Lq, D), as it meets k in the scores.
        k: (B, G, Lk, D); query head h reads key head h // (H / G).
        v: (B, G, Lk, Dv).
        scale: factor on the scores.
        pattern: who may attend, and what is added to the scaled scores.
        softcap: c in c · tanh(scores / c), before what is added; or None.
        sink: (H,), one more score in each row's softmax that no key gets; or None.
        values: what is added to the output for the weights of a block, or None.
        finish: what the model makes of some rows of the heads' outputs (B, H, R, Dv) before it can
            be seen; None means it puts them side by side, (B, R, H, Dv).
    """

    q: Float[Tensor, "b h lq d"]
    k: Float[Tensor, "b g lk d"]
    v: Float[Tensor, "b g lk dv"]
    scale: float
    pattern: Pattern
    softcap: float | None = None
    sink: Tensor | None = None
    values: Callable[[Block], Tensor | None] | None = None
    finish: Callable[[Tensor], Tensor] | None = None

    @property
    def size(self) -> tuple[int, int, int, int]:
        """B, H, Lq, Lk."""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2]

    @cached_property
    def wide(self) -> torch.dtype:
        """The dtype that weights are computed in: float32 at least."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @cached_property
    def _keys(self) -> Tensor:
        """(B·G, Lk, D), laid out once for all blocks."""
        return self.k.flatten(0, 1)

    def block(
        self,
        rows: slice,
        dtype: torch.dtype | None = None,
        also: slice | None = None,
        room: Tensor | None = None,
    ) -> Block:
        """The weights of these rows, over the keys they reach.

        Args:
            rows: with a start and a stop.
            dtype: to compute in; None means `wide`.
            also: keys that are to be among them anyway.
            room: numbers of that dtype, B·H·R·Lk or more, where the weights may be written: the
                block then lasts until the next one. New memory for each costs more than the
                arithmetic.
        """
        dtype, batch = dtype or self.wide, self.size[0]
        keys = self.pattern.reach(rows)
        if also is not None:
            some = keys.stop > keys.start
            keys = slice(min(keys.start, also.start), max(keys.stop, also.stop)) if some else also
        keys = _rounded(keys, self.size[3])
        allowed = self.pattern.allowed(rows, keys).expand(batch, -1, -1, -1)
        scores = self._scores(rows, keys, dtype, room)
        closed = torch.zeros(allowed.shape, dtype=dtype, device=scores.device)
        scores += closed.masked_fill_(~allowed, -torch.inf)
        if self.sink is not None:
            extra = self.sink.to(dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat((scores, extra), dim=-1)
        weights = torch.softmax(scores, -1, out=scores)[..., : allowed.shape[-1]]
        blind = ~allowed.any(-1, keepdim=True)  # (B, H or 1, R, 1): their softmax is NaN
        if bool(blind.any()):
            weights = weights.masked_fill(blind, 0.0)
        return Block(weights, allowed, rows, keys)

    def output(self, rows: slice, dtype: torch.dtype | None = None) -> Tensor:
        """What the model's heads give for these rows in full precision, (B, H, R, Dv)."""
        block = self.block(rows, dtype)
        v = self.v[:, :, block.keys].to(block.weights.dtype)
        batch, heads, count, keys = block.weights.shape
        grouped = block.weights.reshape(batch, -1, self._group * count, keys)
        output = torch.matmul(grouped, v).view(batch, heads, count, -1)
        more = None if self.values is None else self.values(block)
        return output if more is None else output + more

    @property
    def _group(self) -> int:
        return self.q.shape[1] // max(self.k.shape[1], 1)

    def _scores(self, rows: slice, keys: slice, dtype: torch.dtype, room: Tensor | None) -> Tensor:
        """(B, H, R, K): scaled, capped, and with what is added."""
        q = self.q[:, :, rows].to(dtype)
        batch, heads, count, dim = q.shape
        grouped = q.reshape(-1, self._group * count, dim)  # the heads that read one key head
        k = self._keys[:, keys].to(dtype).mT
        size = (k.shape[0], grouped.shape[1], k.shape[2])
        wide = batch * heads * count * k.shape[2]
        free = q.new_empty(wide) if room is None else room[:wide]
        scores = torch.bmm(grouped * self.scale, k, out=free.view(size))
        scores = scores.view(batch, heads, count, -1)
        if self.softcap is not None:
            scores = scores.div_(self.softcap).tanh_().mul_(self.softcap)
        added = self.pattern.added(rows, keys)
        if added is not None:
            scores += added.to(dtype)
        return scores


def _rounded(keys: slice, most: int) -> slice:
    """A range with its ends moved out to multiples of `STEP`."""
    return slice(keys.start // STEP * STEP, min(-(-keys.stop // STEP) * STEP, most))
