"""Decomposition of a mask into parts that share no pair, in the shapes fastest to compute.

Bands hold the pairs at a range of distances, as overlapping views of the keys. Global tokens give
whole rows and columns. Everything else becomes tiles.
"""

import math
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from headwise.engines.tiled.parts import Band, IndexedRows, Part, StridedRows, allowed_distances
from headwise.engines.tiled.tiles import tiles
from headwise.masks import Mask, Tile
from headwise.masks.mask import And, Not, Or
from headwise.masks.patterns.global_tokens import GlobalTokens
from headwise.shapes import AttentionShape, Index, Truth

GAP = 64  # a gap of more than this many distances splits a band into two
RUN = 4  # number of consecutive distances from which a run is a band, not a tooth of a comb
TOOTH = 16  # the fewest queries of a residue class for which a comb is worthwhile


MOST = 8  # the most disjuncts into which a mask is expanded


def parts(mask: Mask, shape: AttentionShape, side: int) -> list[Part]:
    """Return parts that together hold every allowed pair exactly once.

    The disjuncts that depend only on the distance become one set of bands. Each other disjunct,
    minus the disjuncts before it, becomes bands, or rows and columns, if possible. The rest becomes
    tiles. A block has about ``side`` queries.
    """
    alternatives = disjuncts(mask)
    near = [term for term in alternatives if term.by_distance]
    plan, before, rest = list[Part](), list[Mask](), list[Mask]()
    if near:
        before.append(reduce(Or, near))
        plan += bands(before[0], None, shape, side, 0)
    for term in (term for term in alternatives if not term.by_distance):
        family = _family(term, before, shape, side, next_layer(plan))
        if family is None:
            rest.append(term)
        else:
            plan += family
            before.append(term)
    if rest:
        remaining = reduce(And, map(Not, before), reduce(Or, rest))
        plan += tiles(remaining, shape, side, next_layer(plan))
    return plan


def next_layer(plan: list[Part]) -> int:
    """Return the layer above all parts."""
    return 1 + max((part.layer for part in plan), default=-1)


def disjuncts(mask: Mask) -> list[Mask]:
    """Return the disjuncts of a mask, none of them an Or, unless there are too many."""
    if isinstance(mask, Or):
        return disjuncts(mask.left) + disjuncts(mask.right)
    if isinstance(mask, And) and not mask.by_distance:
        left, right = disjuncts(mask.left), disjuncts(mask.right)
        if len(left) * len(right) <= MOST:
            return [And(one, other) for one in left for other in right]
    return [mask]


def conjuncts(mask: Mask) -> list[Mask]:
    """Return the conjuncts of a mask, none of them an And."""
    if isinstance(mask, And):
        return conjuncts(mask.left) + conjuncts(mask.right)
    return [mask]


def _family(
    mask: Mask, before: list[Mask], shape: AttentionShape, side: int, layer: int
) -> list[Part] | None:
    """Return a disjunct, minus those in ``before``, as bands or rows and columns, or None."""
    terms = conjuncts(mask)
    tokens = [term for term in terms if isinstance(term, GlobalTokens)]
    if tokens:
        return _rows_and_columns(reduce(And, map(Not, before), mask), tokens[0], shape, layer)
    near = [term for term in terms if term.by_distance]
    if not near or mostly_dense(reduce(And, near), shape):
        return None
    terms += [Not(term) for term in before]
    near = [term for term in terms if term.by_distance]
    rest = [term for term in terms if not term.by_distance]
    return bands(reduce(And, near), reduce(And, rest), shape, side, layer)


def _rows_and_columns(
    mask: Mask, tokens: GlobalTokens, shape: AttentionShape, layer: int
) -> list[Part]:
    """Return the parts of a mask that is empty outside the rows and columns of global tokens.

    The columns have layer ``layer``, the rows ``layer + 1``.
    """
    chosen = tokens.chosen.any(0).nonzero()[:, 0].to(shape.device)
    keys = chosen[chosen < shape.keys]
    rows = chosen - shape.offset
    rows = rows[(rows >= 0) & (rows < shape.queries)] if tokens.symmetric else rows[:0]
    all_queries, all_keys = StridedRows(0, 1, shape.queries), StridedRows(0, 1, shape.keys)
    plan = list[Part]()
    if len(keys):
        plan.append(Part(all_queries, IndexedRows(keys[None]), mask, layer=layer))
    if len(rows):
        rest = And(mask, Not(KeyColumns(keys)))
        plan.append(Part(IndexedRows(rows[None]), all_keys, rest, layer=layer + 1))
    return plan


@dataclass(frozen=True, repr=False, eq=False)
class KeyColumns(Mask):
    """A mask that allows only the keys with these indices, for every query."""

    numbers: Tensor

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return torch.isin(k, self.numbers)

    def tile(self, q: range, k: range) -> Tile:
        return Tile.MIXED

    @property
    def name(self) -> str:
        return f"columns({self.numbers.tolist()})"


@dataclass(frozen=True, eq=False)
class DistanceRange:
    """The distances ``low + t step`` for all t where allowed[t] is True."""

    low: int
    step: int
    allowed: Tensor


def bands(
    near: Mask, rest: Mask | None, shape: AttentionShape, side: int, layer: int
) -> list[Part]:
    """Return the parts of ``near & rest``; their layers start at ``layer``, one for each band.

    ``near`` depends only on the distance. ``rest`` is evaluated pair by pair where its tiles are
    neither empty nor full. A block has ``side`` queries for a band of width about 500.
    """
    plan = list[Part]()
    for number, reach in enumerate(distance_ranges(near, shape)):
        for part in _band(reach, shape, side):
            kept = [part] if rest is None else _restricted(part, rest, shape)
            plan += [replace(piece, layer=layer + number) for piece in kept]
    return plan


def mostly_dense(near: Mask, shape: AttentionShape) -> bool:
    """Return whether the bands of a mask hold more than half of the keys."""
    return 2 * sum(len(reach.allowed) for reach in distance_ranges(near, shape)) > shape.keys


def distance_ranges(near: Mask, shape: AttentionShape) -> list[DistanceRange]:
    """Return the distances that a mask allows, as solid bands and at most one comb."""
    low, high = shape.offset - shape.keys + 1, shape.offset + shape.queries - 1
    allowed = allowed_distances(near, low, high + 1, shape.device)
    places = allowed.nonzero()[:, 0]
    if not len(places):
        return []
    turns = (places.diff() > 1).nonzero()[:, 0]
    starts = torch.cat((places[:1], places[turns + 1]))
    stops = torch.cat((places[turns], places[-1:])) + 1
    short = stops - starts < RUN
    comb = _comb(starts[short], stops[short], allowed, low, shape)
    if comb:  # a band across a gap must not contain the teeth of the comb
        allowed = allowed.index_fill(0, starts[short], value=False)
        starts, stops = starts[~short], stops[~short]
    solid = _merged(starts.tolist(), stops.tolist())
    return [DistanceRange(low + start, 1, allowed[start:stop]) for start, stop in solid] + comb


def _comb(
    starts: Tensor, stops: Tensor, allowed: Tensor, low: int, shape: AttentionShape
) -> list[DistanceRange]:
    """Return isolated distances as one comb, if they have a common step that is worthwhile."""
    if len(starts) < 2 or bool((stops - starts > 1).any()):
        return []
    step = math.gcd(*set(starts.diff().tolist()))
    if step == 1 or shape.queries < TOOTH * step:
        return []
    first, last = int(starts[0]), int(starts[-1])
    teeth = torch.zeros((last - first) // step + 1, dtype=torch.bool, device=allowed.device)
    teeth[(starts - first) // step] = True
    return [DistanceRange(low + first, step, teeth)]


def _merged(starts: list[int], stops: list[int]) -> list[tuple[int, int]]:
    """Merge runs that have at most `GAP` distances between them."""
    runs = list[tuple[int, int]]()
    for start, stop in zip(starts, stops, strict=True):
        if runs and start - runs[-1][1] <= GAP:
            start = runs.pop()[0]
        runs.append((start, stop))
    return runs


def _band(reach: DistanceRange, shape: AttentionShape, side: int) -> list[Part]:
    """Return a plain band for every residue class of rows; a step of 1 has one class."""
    plan, step = list[Part](), reach.step
    for first in range(min(step, shape.queries)):
        key = (first + shape.offset - reach.low) % step
        if key < shape.keys:
            queries = StridedRows(first, 1, len(range(first, shape.queries, step)), step=step)
            keys = StridedRows(key, 1, len(range(key, shape.keys, step)), step=step)
            shift = (first + shape.offset - key - reach.low) // step
            plan += _plain_band(queries, keys, Band(reach.allowed, shift), side)
    return plan


def _plain_band(queries: StridedRows, keys: StridedRows, band: Band, side: int) -> list[Part]:
    """Return the blocks whose keys all exist as one part, and the blocks at the edges separately.

    Row i may attend to key j if ``band.allowed[i - j + band.shift]``, counted in ``queries`` and
    ``keys``. The blocks of a narrow band have fewer rows than ``side``, those of a wide band more.
    """
    rows, width, shift = queries.size, len(band.allowed), band.shift
    wide = min(max(side, width // 16 // side * side), 256)
    side = max(32, side // 2) if width < side else wide
    low = min(max(0, -((shift - width + 1) // side)), rows // side)
    high = max(low, min(rows // side, (keys.size - shift - side) // side + 1))
    plan = list[Part]()
    for first in (*range(0, low * side, side), *range(high * side, rows, side)):
        last = min(first + side, rows)
        start, stop = max(0, first + shift - width + 1), min(keys.size, last + shift)
        if start < stop:
            edge = Band(band.allowed, first - start + shift)
            plan.append(_band_part(queries.slice(first, last), keys.slice(start, stop), edge))
    if high > low:
        count, first = high - low, low * side
        start = first + shift - width + 1
        inside, along = queries.slice(first, first + side), keys.slice(start, first + shift + side)
        inside = replace(inside, count=count, jump=side * queries.step)
        along = replace(along, count=count, jump=side * keys.step)
        plan.append(_band_part(inside, along, Band(band.allowed, width - 1)))
    return plan


def _band_part(queries: StridedRows, keys: StridedRows, band: Band) -> Part:
    everything = band.everything(queries.size, keys.size)
    return Part(queries, keys, band=None if everything else band)


def _restricted(part: Part, rest: Mask, shape: AttentionShape) -> list[Part]:
    """Drop the blocks where ``rest`` is empty; split the part where its tiles change kind."""
    runs = list[tuple[int, int, bool]]()
    waiting = [(0, part.queries.count)]
    while waiting:
        first, last = waiting.pop()
        kind = rest.tile(*_hull(part.blocks(first, last), shape))
        if kind is Tile.MIXED and last - first > 1:
            middle = (first + last) // 2
            waiting += [(middle, last), (first, middle)]
        elif kind is not Tile.EMPTY:
            mixed = kind is Tile.MIXED
            if runs and runs[-1][1:] == (first, mixed):
                first = runs.pop()[0]
            runs.append((first, last, mixed))
    plan = list[Part]()
    for first, last, mixed in runs:
        piece = part.blocks(first, last)
        mask = rest.restrict(*_hull(piece, shape)) if mixed else None
        plan.append(replace(piece, mask=mask))
    return plan


def _hull(part: Part, shape: AttentionShape) -> tuple[range, range]:
    """Return the ranges of query and key positions that a part spans."""
    ends = []
    for rows in (part.queries, part.keys):
        if not isinstance(rows, StridedRows):
            raise TypeError("bands: expected strided blocks")
        last = rows.start + (rows.count - 1) * rows.jump + (rows.size - 1) * rows.step
        ends.append((rows.start, last + 1))
    (first, last), keys = ends
    return range(first + shape.offset, last + shape.offset), range(*keys)
