"""The blocks of queries of an attention, and what is computed for them before any weight.

Layers with the same mask over the same text share a layout: the allowed pairs, the number of
allowed keys, and the metrics of a uniform head.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from headwise.heads.capture.attention_terms import AttentionTerms, BlockRange
from headwise.heads.capture.capture_options import CaptureOptions
from headwise.heads.capture.pattern import Pattern
from headwise.heads.capture.token_positions import TokenPositions
from headwise.heads.metrics import KeyContext, Rows
from headwise.heads.statistics import Baseline

WEIGHTS_OF_BLOCK = 1 << 22
"""The most weights of one block, over batch and heads."""

QUERIES_OF_GROUP = 1 << 10
"""About how many queries the metrics are computed for at once, after the weights are freed."""

CACHED_LAYOUTS = 4
"""How many layouts are cached: layers with and without a window may alternate."""


@dataclass(frozen=True, eq=False)
class Group:
    """Blocks of queries whose metrics are computed at once.

    Attributes:
        parts: the blocks.
        contexts: the keys that the queries of each may attend to.
        context: the same of all blocks together.
        baseline: the metrics of a uniform head.
    """

    parts: tuple[BlockRange, ...]
    contexts: tuple[KeyContext, ...]
    context: KeyContext
    baseline: Baseline


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """An attention cut into blocks.

    Attributes:
        groups: all queries, in order.
        pattern, place, size, tokens: what it holds for.
        buffer_size: the most weights that a block has.
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
        all_parts = [part for group in groups for part in group.parts]
        per_row = terms.size[0] * terms.size[1]
        buffer_size = (
            max((_count(part.rows) * _count(part.keys) for part in all_parts), default=0) * per_row
        )
        return cls(tuple(groups), terms.pattern, place, terms.size, terms.tokens, buffer_size)

    def fits(self, terms: AttentionTerms, place: TokenPositions) -> bool:
        """Whether it is also the layout of these terms."""
        same = (self.size, self.tokens) == (terms.size, terms.tokens)
        return same and self.pattern.same_as(terms.pattern) and self.place.same_as(place)

    @property
    def queries(self) -> Tensor:
        """(B, H or 1, Lq), the queries that count and see a key."""
        return torch.cat([group.context.queries for group in self.groups], 2)


class LayoutCache:
    """The layouts of the pass that is running.

    Args:
        options: of the capture.
    """

    def __init__(self, options: CaptureOptions) -> None:
        self._options = options
        self._cached: list[BlockLayout] = []

    def forget(self) -> None:
        """Forget all layouts: another pass has other texts."""
        self._cached.clear()

    def of(self, terms: AttentionTerms, place: TokenPositions) -> BlockLayout:
        """The layout of an attention, cached or new."""
        found = next((layout for layout in self._cached if layout.fits(terms, place)), None)
        if found is None:
            found = BlockLayout.of(terms, place, self._options)
            self._cached = [*self._cached[1 - CACHED_LAYOUTS :], found]
        return found


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
    for row_slice in rows:
        keys = terms.reach(row_slice, place.own(row_slice, terms.tokens))
        allowed = terms.allowed(row_slice, keys)
        context = _key_context(place, options, row_slice, keys, allowed[..., terms.within(keys)])
        no_weights = allowed.new_zeros(1, dtype=terms.wide).expand(context.allowed.shape)
        uniform_rows = Rows(weights=no_weights, context=context).uniform
        uniform.append(uniform_rows.without_inputs(reads))
        contexts.append(context.without_inputs(reads))
        parts.append(BlockRange.of(row_slice, keys, allowed))
    seen = KeyContext.concatenated([block_rows.context for block_rows in uniform], reads)
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


def _count(places: slice) -> int:
    return int(places.stop - places.start)
