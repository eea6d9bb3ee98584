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

LEAST = -1e30
"""A score below which nothing is told apart; a key that is not allowed has a lower one."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some queries, the keys that one of them may attend to, and where they may not attend to all.

    Attributes:
        rows: which queries.
        keys: which keys; none of these queries may attend to another.
        mixed: keys outside of which, among ``keys``, every query may attend to every key.
        blind: (B, H or 1, R, 1), the queries that may attend to no key; None where none is.
    """

    rows: slice
    keys: slice
    mixed: slice
    blind: Bool[Tensor, "b #h r one"] | None

    @classmethod
    def of(cls, rows: slice, keys: slice, allowed: Bool[Tensor, "b #h r k"]) -> "Part":
        """The part that these queries and keys are, by who may attend to what."""
        some = (~allowed).flatten(0, 2).any(0).nonzero().flatten().tolist() or [-1, -1]
        mixed = slice(keys.start + some[0], keys.start + some[-1] + 1) if some[0] >= 0 else None
        blind = ~allowed.any(-1, keepdim=True)
        return cls(rows, keys, mixed or slice(0, 0), blind if bool(blind.any()) else None)


@dataclass(frozen=True, eq=False)
class Block:
    """The weights of some queries over the keys that one of them may attend to.

    Attributes:
        weights: (B, H, R, K), 0 where not allowed; float32 at least.
        scores: (B, H, R, K), finite, whose softmax, over keys and sink, the weights are.
        part: which queries and keys.
    """

    weights: Float[Tensor, "b h r k"]
    scores: Float[Tensor, "b h r k"]
    part: Part


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
        appended: how many of the keys, the last ones, are none of the text's tokens: those of
            ``add_bias_kv`` and ``add_zero_attn``. What a query gives them is unspent, as is what a
            sink gets.
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
    appended: int = 0
    finish: Callable[[Tensor], Tensor] | None = None

    @property
    def size(self) -> tuple[int, int, int, int]:
        """B, H, Lq, Lk."""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2]

    @property
    def tokens(self) -> int:
        """How many of the keys are tokens of the text."""
        return self.k.shape[2] - self.appended

    @property
    def measurable(self) -> bool:
        """Whether there is a query, and a token that it could attend to."""
        return 0 not in (*self.size[:3], self.tokens)

    def within(self, keys: slice) -> slice:
        """Those of these keys that are tokens of the text, by their place among them."""
        return slice(0, min(keys.stop, self.tokens) - keys.start)

    @cached_property
    def wide(self) -> torch.dtype:
        """The dtype that weights are computed in: float32 at least."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @cached_property
    def _keys(self) -> Tensor:
        """(B·G, Lk, D), laid out once for all blocks."""
        return self.k.flatten(0, 1)

    def part(self, rows: slice) -> Part:
        """These queries with the keys that they reach."""
        keys = self.reach(rows)
        return Part.of(rows, keys, self.allowed(rows, keys))

    def reach(self, rows: slice, also: slice | None = None) -> slice:
        """The keys that these queries reach; those of ``also`` are among them anyway."""
        keys = self.pattern.reach(rows)
        if also is not None:
            some = keys.stop > keys.start
            keys = slice(min(keys.start, also.start), max(keys.stop, also.stop)) if some else also
        if keys.stop == keys.start:
            keys = slice(0, 1)  # what reaches no key is blind, and has a key to be so
        if self.appended:
            keys = slice(min(keys.start, self.tokens - 1), keys.stop)  # and a token as well
        return _rounded(keys, self.size[3])

    def allowed(self, rows: slice, keys: slice) -> Bool[Tensor, "b #h r k"]:
        """True where a query of these rows may attend to one of these keys."""
        return self.pattern.allowed(rows, keys).expand(self.size[0], -1, -1, -1)

    def block(
        self, part: Part, dtype: torch.dtype | None = None, rooms: Tensor | None = None
    ) -> Block:
        """The weights of a part.

        Args:
            part: of these terms, or of others with the same pattern.
            dtype: to compute in; None means `wide`.
            rooms: (2, B·H·R·K or more) of that dtype, where scores and weights may be written: the
                block then lasts until the next one. New memory for each costs more than the
                arithmetic.
        """
        dtype, keys = dtype or self.wide, part.keys
        scores = self._scores(part.rows, keys, dtype, rooms)
        mixed = part.mixed
        if mixed.stop > mixed.start:
            closed = ~self.allowed(part.rows, mixed)
            where = slice(mixed.start - keys.start, mixed.stop - keys.start)
            scores[..., where].masked_fill_(closed, torch.finfo(dtype).min / 2)
        if self.sink is not None:
            extra = self.sink.to(dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            both = torch.cat((scores, extra), dim=-1)
            weights = torch.softmax(both, -1)[..., :-1]
        elif rooms is None:
            weights = torch.softmax(scores, -1)
        else:
            room = rooms[1][: scores.numel()].view(scores.shape)
            weights = torch.softmax(scores, -1, out=room)
        if part.blind is not None:
            weights = weights.masked_fill(part.blind, 0.0)
        return Block(weights, scores, part)

    def output(self, rows: slice, dtype: torch.dtype | None = None) -> Tensor:
        """What the model's heads give for these rows in full precision, (B, H, R, Dv)."""
        block = self.block(self.part(rows), dtype)
        v = self.v[:, :, block.part.keys].to(block.weights.dtype)
        batch, heads, count, keys = block.weights.shape
        grouped = block.weights.reshape(batch, -1, self._group * count, keys)
        output = torch.matmul(grouped, v).view(batch, heads, count, -1)
        more = None if self.values is None else self.values(block)
        return output if more is None else output + more

    @property
    def _group(self) -> int:
        return self.q.shape[1] // max(self.k.shape[1], 1)

    def _scores(self, rows: slice, keys: slice, dtype: torch.dtype, rooms: Tensor | None) -> Tensor:
        """(B, H, R, K): scaled, capped, and with what is added."""
        q = self.q[:, :, rows].to(dtype)
        batch, heads, count, dim = q.shape
        grouped = q.reshape(-1, self._group * count, dim)  # the heads that read one key head
        k = self._keys[:, keys].to(dtype).mT
        size = (k.shape[0], grouped.shape[1], k.shape[2])
        wide = batch * heads * count * k.shape[2]
        free = q.new_empty(wide) if rooms is None else rooms[0][:wide]
        scores = torch.bmm(grouped * self.scale, k, out=free.view(size))
        scores = scores.view(batch, heads, count, -1)
        if self.softcap is not None:
            scores = scores.div_(self.softcap).tanh_().mul_(self.softcap)
        added = self.pattern.added(rows, keys)
        if added is not None:
            scores += added.to(dtype)
            scores.clamp_(min=LEAST)
        return scores


def _rounded(keys: slice, most: int) -> slice:
    """A range with its ends moved out to multiples of `STEP`."""
    return slice(keys.start // STEP * STEP, min(-(-keys.stop // STEP) * STEP, most))
