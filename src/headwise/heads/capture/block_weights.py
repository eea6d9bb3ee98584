"""Compute the attention weights of blocks of queries as a model computes them."""

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

KEY_MULTIPLE = 64  # ranges of keys begin and end at multiples of 64 for memory alignment
LOWEST_SCORE = -1e30  # the lowest score of an allowed key; masked scores are lower


@dataclass(frozen=True, eq=False)
class BlockRange:
    """A range of queries and the range of keys that they may attend to.

    Attributes:
        rows: the queries.
        keys: the keys.
        mixed: the part of ``keys`` in which some pairs are not allowed.
        fully_masked: (B, H or 1, R, 1), True for fully masked queries; None if there are none.
    """

    rows: slice
    keys: slice
    mixed: slice
    fully_masked: Bool[Tensor, "b #h r one"] | None

    @classmethod
    def of(cls, rows: slice, keys: slice, allowed: Bool[Tensor, "b #h r k"]) -> "BlockRange":
        """Return the range of these queries and keys from their allowed pairs."""
        closed = (~allowed).flatten(0, 2).any(0).nonzero().flatten().tolist()
        start = keys.start
        mixed = slice(start + closed[0], start + closed[-1] + 1) if closed else slice(0, 0)
        fully_masked = ~allowed.any(-1, keepdim=True)
        return cls(rows, keys, mixed, fully_masked if bool(fully_masked.any()) else None)


@dataclass(frozen=True, eq=False)
class WeightBlock:
    """The attention weights of a range of queries and the finite scores before the softmax."""

    weights: Float[Tensor, "b h r k"]
    scores: Float[Tensor, "b h r k"]
    part: BlockRange


@dataclass(frozen=True, eq=False)
class AttentionTerms:
    """The terms of the formula of one attention call.

    Attributes:
        q: the queries (B, H, Lq, D), after the rotary embedding.
        k: the keys (B, G, Lk, D), after the rotary embedding; query head h uses key head
            h // (H / G).
        v: the values (B, G, Lk, Dv).
        scale: the factor on the scores.
        pattern: the allowed pairs, and the terms added to the scaled scores.
        softcap: c in c · tanh(scores / c), applied before terms are added; or None.
        sink: (H,), a learned logit in the softmax of each row that belongs to no key; or None.
        values: a function from a block of weights to a term of the output, or to None; or None.
        appended: the number of last keys that are not tokens, from ``add_bias_kv`` and
            ``add_zero_attn``. The weight on them counts as sink mass.
        finish: a function from the head outputs (B, H, R, Dv) to the output of the module; None
            means a transpose to (B, R, H, Dv).
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
        """The sizes B, H, Lq and Lk."""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2]

    @property
    def tokens(self) -> int:
        """The number of keys that are tokens."""
        return self.k.shape[2] - self.appended

    @property
    def measurable(self) -> bool:
        """Whether there is at least one query and one token."""
        return 0 not in (*self.size[:3], self.tokens)

    def within(self, keys: slice) -> slice:
        """Return the range of tokens within a range of keys, counted from its start."""
        return slice(0, min(keys.stop, self.tokens) - keys.start)

    @cached_property
    def wide(self) -> torch.dtype:
        """The dtype of the weights, at least float32."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @cached_property
    def _keys(self) -> Tensor:
        """The keys (B, G, Lk, D) in a memory layout that blocks can use without a copy."""
        batch, groups, length, dim = self.k.shape
        return self.k.flatten(0, 1).view(batch, groups, length, dim)

    def reach(self, rows: slice, also: slice | None = None) -> slice:
        """Return the aligned range of the keys that ``rows`` may attend to and of ``also``."""
        keys = self.pattern.reach(rows)
        if also is not None:
            some = keys.stop > keys.start
            keys = slice(min(keys.start, also.start), max(keys.stop, also.stop)) if some else also
        if keys.stop == keys.start:
            keys = slice(0, 1)  # a fully masked row needs at least one key
        if self.appended:
            keys = slice(min(keys.start, self.tokens - 1), keys.stop)  # and at least one token
        start = keys.start // KEY_MULTIPLE * KEY_MULTIPLE
        return slice(start, min(-(-keys.stop // KEY_MULTIPLE) * KEY_MULTIPLE, self.size[3]))

    def allowed(self, rows: slice, keys: slice) -> Bool[Tensor, "b #h r k"]:
        """Return True where a query in ``rows`` may attend to a key in ``keys``."""
        return self.pattern.allowed(rows, keys).expand(self.size[0], -1, -1, -1)

    def block(
        self, part: BlockRange, dtype: torch.dtype | None = None, buffers: Tensor | None = None
    ) -> WeightBlock:
        """Compute the weights of a range of queries in ``dtype``, by default `wide`.

        The ``buffers`` (2, B·H·R·K or more) store scores and weights until the next block.
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
        """Compute the head outputs (B, H, R, Dv) of ``rows`` in ``dtype``, by default `wide`."""
        keys = self.reach(rows)
        block = self.block(BlockRange.of(rows, keys, self.allowed(rows, keys)), dtype)
        output = weighted_values(block.weights, self.v[:, :, keys].to(block.weights.dtype))
        added = None if self.values is None else self.values(block)
        return output if added is None else output + added


WEIGHTS_OF_BLOCK = 1 << 22  # the most weights of a block, over batch and heads
QUERIES_OF_GROUP = 1 << 10  # the approximate number of queries of a group
CACHED_LAYOUTS = 4  # more than one, since layers with and without a window may alternate


@dataclass(frozen=True, eq=False)
class Group:
    """Blocks of queries whose metrics are computed together, and their joint context."""

    parts: tuple[BlockRange, ...]
    contexts: tuple[KeyContext, ...]
    context: KeyContext
    baseline: Baseline


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """The division of an attention call into blocks of at most ``buffer_size`` weights.

    It is valid for every attention call with the same pattern, place, size and number of tokens.
    """

    groups: tuple[Group, ...]
    pattern: Pattern
    place: TokenPositions
    size: tuple[int, ...]
    tokens: int
    buffer_size: int

    @classmethod
    def of(cls, terms: AttentionTerms, place: TokenPositions, options: CaptureOptions) -> Self:
        """Divide the queries into blocks and compute their contexts."""
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
        """Return whether the layout is valid for these terms."""
        same = (self.size, self.tokens) == (terms.size, terms.tokens)
        return same and self.pattern.same_as(terms.pattern) and self.place.same_as(place)

    @property
    def queries(self) -> Tensor:
        """(B, H or 1, Lq), True for queries that count and are not fully masked."""
        return torch.cat([group.context.queries for group in self.groups], 2)


class LayoutCache:
    """The most recent layouts of the current forward pass."""

    def __init__(self, options: CaptureOptions) -> None:
        self._options = options
        self._cached: list[BlockLayout] = []

    def forget(self) -> None:
        """Remove all layouts before a forward pass on other texts."""
        self._cached.clear()

    def of(self, terms: AttentionTerms, place: TokenPositions) -> BlockLayout:
        """Return the layout of an attention call from the cache, or a new one."""
        for layout in self._cached:
            if layout.fits(terms, place):
                return layout
        layout = BlockLayout.of(terms, place, self._options)
        self._cached = [*self._cached[1 - CACHED_LAYOUTS :], layout]
        return layout


def _query_slices(terms: AttentionTerms, place: TokenPositions) -> Iterator[slice]:
    """Yield the queries of each block, with at most `WEIGHTS_OF_BLOCK` weights per block."""
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
