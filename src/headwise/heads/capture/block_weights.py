"""Blocks of queries, and the attention weights of one block as a model computes them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headwise.engines.blockwise.blocks import length as _count
from headwise.engines.blockwise.blocks import scaled_scores, softmax_weights, weighted_values
from headwise.heads.capture.capture_options import CaptureOptions
from headwise.heads.capture.pattern import Pattern
from headwise.heads.capture.token_positions import TokenPositions
from headwise.heads.metrics import KeyContext, Rows
from headwise.heads.statistics import Baseline

KEY_MULTIPLE = 64  # ranges of keys begin and end at multiples of this, for alignment
LOWEST_SCORE = -1e30  # the lowest score of an allowed key; that of others is lower


@dataclass(frozen=True, eq=False)
class BlockRange:
    """A range of queries, and the range of keys that they may attend to.

    Attributes:
        mixed: the part of ``keys`` where some pairs are not allowed.
        fully_masked: (B, H or 1, R, 1), the queries that may attend to no key; None without any.
    """

    rows: slice
    keys: slice
    mixed: slice
    fully_masked: Bool[Tensor, "b #h r one"] | None

    @classmethod
    def of(cls, rows: slice, keys: slice, allowed: Bool[Tensor, "b #h r k"]) -> "BlockRange":
        """The range of these queries and keys, by which pairs are allowed."""
        closed = (~allowed).flatten(0, 2).any(0).nonzero().flatten().tolist()
        start = keys.start
        mixed = slice(start + closed[0], start + closed[-1] + 1) if closed else slice(0, 0)
        fully_masked = ~allowed.any(-1, keepdim=True)
        return cls(rows, keys, mixed, fully_masked if bool(fully_masked.any()) else None)


@dataclass(frozen=True, eq=False)
class WeightBlock:
    """The weights of a range of queries, and the finite scores whose softmax they are."""

    weights: Float[Tensor, "b h r k"]
    scores: Float[Tensor, "b h r k"]
    part: BlockRange


@dataclass(frozen=True, eq=False)
class AttentionTerms:
    """The terms of the formula of one attention.

    Attributes:
        q: (B, H, Lq, D), with its rotary position.
        k: (B, G, Lk, D), the same; query head h reads key head h // (H / G).
        v: (B, G, Lk, Dv).
        scale: factor on the scores.
        pattern: the allowed pairs, and what is added to the scaled scores.
        softcap: c in c · tanh(scores / c), before anything is added; or None.
        sink: (H,), a logit in each row's softmax whose share no key gets; or None.
        values: gives what is added to the output for the weights of a block, or None.
        appended: how many of the last keys are not tokens: those of ``add_bias_kv`` and
            ``add_zero_attn``. The weight on them counts as sink mass.
        finish: the model's operation on heads' outputs (B, H, R, Dv) that gives its visible
            output; None means a transpose to (B, R, H, Dv).
    """

    q: Float[Tensor, "b h lq d"]
    k: Float[Tensor, "b g lk d"]
    v: Float[Tensor, "b g lk dv"]
    scale: float
    pattern: Pattern
    softcap: float | None = None
    sink: Tensor | None = None
    values: Callable[[WeightBlock], Tensor | None] | None = None
    appended: int = 0
    finish: Callable[[Tensor], Tensor] | None = None

    @property
    def size(self) -> tuple[int, int, int, int]:
        """B, H, Lq, Lk."""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2]

    @property
    def tokens(self) -> int:
        """The number of keys that are tokens."""
        return self.k.shape[2] - self.appended

    @property
    def measurable(self) -> bool:
        """Whether there is a query and a token."""
        return 0 not in (*self.size[:3], self.tokens)

    def within(self, keys: slice) -> slice:
        """The indices of tokens within these keys."""
        return slice(0, min(keys.stop, self.tokens) - keys.start)

    @cached_property
    def wide(self) -> torch.dtype:
        """The dtype of the weights: float32 at least."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @cached_property
    def _keys(self) -> Tensor:
        """The keys (B, G, Lk, D) in a layout that blocks need not copy."""
        batch, groups, length, dim = self.k.shape
        return self.k.flatten(0, 1).view(batch, groups, length, dim)

    def reach(self, rows: slice, also: slice | None = None) -> slice:
        """The keys that these queries may attend to, with those of ``also``."""
        keys = self.pattern.reach(rows)
        if also is not None:
            some = keys.stop > keys.start
            keys = slice(min(keys.start, also.start), max(keys.stop, also.stop)) if some else also
        if keys.stop == keys.start:
            keys = slice(0, 1)  # fully masked rows need a key too
        if self.appended:
            keys = slice(min(keys.start, self.tokens - 1), keys.stop)  # and a token
        start = keys.start // KEY_MULTIPLE * KEY_MULTIPLE
        return slice(start, min(-(-keys.stop // KEY_MULTIPLE) * KEY_MULTIPLE, self.size[3]))

    def allowed(self, rows: slice, keys: slice) -> Bool[Tensor, "b #h r k"]:
        """True where a query of these rows may attend to one of these keys."""
        return self.pattern.allowed(rows, keys).expand(self.size[0], -1, -1, -1)

    def block(
        self, part: BlockRange, dtype: torch.dtype | None = None, buffers: Tensor | None = None
    ) -> WeightBlock:
        """The weights of a range of queries, in a dtype, by default `wide`.

        The ``buffers`` (2, B·H·R·K or more) get scores and weights; the next block overwrites them.
        """
        dtype, keys = dtype or self.wide, part.keys
        scores_buffer, weights_buffer = (None, None) if buffers is None else buffers
        q, k = self.q[:, :, part.rows].to(dtype), self._keys[:, :, keys].to(dtype)
        scores = scaled_scores(q, k, self.scale, scores_buffer)
        if self.softcap is not None:
            scores = scores.div_(self.softcap).tanh_().mul_(self.softcap)
        added = self.pattern.added(part.rows, keys)
        if added is not None:
            scores += added.to(dtype)
            scores.clamp_(min=LOWEST_SCORE)
        mixed = part.mixed
        if mixed.stop > mixed.start:
            closed = ~self.allowed(part.rows, mixed)
            where = slice(mixed.start - keys.start, mixed.stop - keys.start)
            scores[..., where].masked_fill_(closed, torch.finfo(dtype).min / 2)
        weights = softmax_weights(scores, self.sink, part.fully_masked, weights_buffer)
        return WeightBlock(weights, scores, part)

    def output(self, rows: slice, dtype: torch.dtype | None = None) -> Tensor:
        """The heads' outputs for these rows, unrounded, (B, H, R, Dv)."""
        keys = self.reach(rows)
        block = self.block(BlockRange.of(rows, keys, self.allowed(rows, keys)), dtype)
        output = weighted_values(block.weights, self.v[:, :, keys].to(block.weights.dtype))
        added = None if self.values is None else self.values(block)
        return output if added is None else output + added


WEIGHTS_OF_BLOCK = 1 << 22  # the most weights of one block, over batch and heads
QUERIES_OF_GROUP = 1 << 10  # metrics are computed for about this many queries at once
CACHED_LAYOUTS = 4  # the number of cached layouts: layers with and without a window may alternate


@dataclass(frozen=True, eq=False)
class Group:
    """Blocks of queries whose metrics are computed at once, with the context of all together."""

    parts: tuple[BlockRange, ...]
    contexts: tuple[KeyContext, ...]
    context: KeyContext
    baseline: Baseline


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """An attention cut into blocks of at most ``buffer_size`` weights, in order.

    It is valid for every attention of the same pattern, place, size and number of tokens.
    """

    groups: tuple[Group, ...]
    pattern: Pattern
    place: TokenPositions
    size: tuple[int, ...]
    tokens: int
    buffer_size: int

    @classmethod
    def of(cls, terms: AttentionTerms, place: TokenPositions, options: CaptureOptions) -> Self:
        """Cut the queries into blocks and compute their contexts."""
        parts = list(_query_slices(terms, place))
        groups, first = [], 0
        for last, rows in enumerate(parts):
            if rows.stop - parts[first].start >= QUERIES_OF_GROUP or last == len(parts) - 1:
                groups.append(_group(terms, place, options, parts[first : last + 1]))
                first = last + 1
        pairs = [_count(part.rows) * _count(part.keys) for group in groups for part in group.parts]
        buffer_size = max(pairs, default=0) * terms.size[0] * terms.size[1]
        return cls(tuple(groups), terms.pattern, place, terms.size, terms.tokens, buffer_size)

    def fits(self, terms: AttentionTerms, place: TokenPositions) -> bool:
        """Whether it is the layout of these terms too."""
        same = (self.size, self.tokens) == (terms.size, terms.tokens)
        return same and self.pattern.same_as(terms.pattern) and self.place.same_as(place)

    @property
    def queries(self) -> Tensor:
        """(B, H or 1, Lq), the queries that count and see a key."""
        return torch.cat([group.context.queries for group in self.groups], 2)


class LayoutCache:
    """The last layouts of the running pass."""

    def __init__(self, options: CaptureOptions) -> None:
        self._options = options
        self._cached: list[BlockLayout] = []

    def forget(self) -> None:
        """Forget all layouts, since another pass has other texts."""
        self._cached.clear()

    def of(self, terms: AttentionTerms, place: TokenPositions) -> BlockLayout:
        """The layout of an attention, cached or new."""
        for layout in self._cached:
            if layout.fits(terms, place):
                return layout
        layout = BlockLayout.of(terms, place, self._options)
        self._cached = [*self._cached[1 - CACHED_LAYOUTS :], layout]
        return layout


def _query_slices(terms: AttentionTerms, place: TokenPositions) -> Iterator[slice]:
    """The queries of each block, of at most `WEIGHTS_OF_BLOCK` weights."""
    batch, heads, length, keys = terms.size
    most = max(1, WEIGHTS_OF_BLOCK // max(1, batch * heads))
    least = max(1, most // max(1, keys))
    start = 0
    while start < length:
        stop = min(start + least, length)
        while stop < length:
            rows = slice(start, min(2 * stop - start, length))
            reached = _count(terms.reach(rows, place.own(rows, terms.tokens)))
            if _count(rows) * reached > most:
                break
            stop = rows.stop
        yield slice(start, stop)
        start = stop


def _group(
    terms: AttentionTerms, place: TokenPositions, options: CaptureOptions, rows: Sequence[slice]
) -> Group:
    reads = options.reads
    parts, contexts, uniform = [], [], []
    for block in rows:
        keys = terms.reach(block, place.own(block, terms.tokens))
        allowed = terms.allowed(block, keys)
        context = _key_context(place, options, block, keys, allowed[..., terms.within(keys)])
        no_weights = allowed.new_zeros(1, dtype=terms.wide).expand(context.allowed.shape)
        baseline_rows = Rows(weights=no_weights, context=context).uniform
        uniform.append(baseline_rows.without_inputs(reads))
        contexts.append(context.without_inputs(reads))
        parts.append(BlockRange.of(block, keys, allowed))
    seen = KeyContext.concatenated([baseline_rows.context for baseline_rows in uniform], reads)
    baseline = Baseline.of(Rows.concatenated(uniform, seen, reads), options.metrics)
    return Group(tuple(parts), tuple(contexts), KeyContext.concatenated(contexts, reads), baseline)


def _key_context(
    place: TokenPositions, options: CaptureOptions, rows: slice, keys: slice, allowed: Tensor
) -> KeyContext:
    position = None
    if place.offset is not None:
        position = torch.arange(rows.start, rows.stop, device=allowed.device) + place.offset
    tokens = place.tokens
    return KeyContext(
        allowed=allowed,
        counts=place.queries[:, rows],
        position=position,
        first=place.keys.int().argmax(-1),
        separators=_among(tokens, options.separators),
        tokens=None if tokens is None else tokens.where(place.keys, -1),
        punctuation=_among(tokens, options.punctuation),
        origin=place.base + keys.start,
        length=place.keys.shape[1],
    )


def _among(tokens: Tensor | None, ids: frozenset[int]) -> Tensor | None:
    if tokens is None or not ids:
        return None
    return torch.isin(tokens, torch.tensor(sorted(ids), device=tokens.device))
