"""Bands: pairs at given distances, as overlapping views of the keys."""

import math
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from headwise.engines.tiled.parts import Band, Gathered, Part, Strided
from headwise.engines.tiled.tiles import tiles
from headwise.masks import Mask, Tile
from headwise.masks.mask import And, Not, Or
from headwise.masks.patterns.global_tokens import GlobalTokens
from headwise.shapes import AttentionShape, Index, Truth

GAP = 64
"""Distances that nobody sees, above which a band is rather two bands."""

RUN = 4
"""Distances in a row that make a band of their own beside a comb."""

TOOTH = 16
"""Queries in each class of a comb, below which it is not worth taking apart."""


@dataclass(frozen=True, eq=False)
class DistanceRange:
    """Distances ``low + t step``, of which allowed[t] are in."""

    low: int
    step: int
    allowed: Tensor


def bands(
    near: Mask, rest: Mask | None, frame: AttentionShape, side: int, layer: int
) -> list[Part]:
    """The parts of ``near & rest``.

    Args:
        near: depends on the distance only.
        rest: any mask, or None; where its tiles are neither empty nor full it is evaluated
            pair by pair.
        frame: the outer shape.
        side: rows of a block of queries, for a band about 500 wide.
        layer: of the first band; each further one is a layer above.
    """
    found = list[Part]()
    for number, reach in enumerate(distance_ranges(near, frame)):
        for part in _band(reach, frame, side):
            kept = [part] if rest is None else _asked(part, rest, frame)
            found += [
                Part(each.queries, each.keys, each.mask, each.band, layer + number) for each in kept
            ]
    return found


def mostly_dense(near: Mask, frame: AttentionShape) -> bool:
    """Whether the bands of a mask hold more than half of the keys: the rest decides the cost."""
    return 2 * sum(len(reach.allowed) for reach in distance_ranges(near, frame)) > frame.keys


def distance_ranges(near: Mask, frame: AttentionShape) -> list[DistanceRange]:
    """The distances that a mask allows, taken apart into solid bands and at most one comb."""
    low, high = frame.offset - frame.keys + 1, frame.offset + frame.queries - 1
    zero = torch.zeros((), dtype=torch.long, device=frame.device)
    distances = torch.arange(low, high + 1, device=frame.device)
    allowed = near.rule(zero, zero, distances, zero).expand(len(distances))
    places = allowed.nonzero()[:, 0]
    if not len(places):
        return []
    turns = (places.diff() > 1).nonzero()[:, 0]
    starts = torch.cat((places[:1], places[turns + 1]))
    stops = torch.cat((places[turns], places[-1:])) + 1
    short = stops - starts < RUN
    comb = _comb(starts[short], stops[short], allowed, low, frame)
    if comb:  # a band over the gap between two solid runs must not have its teeth again
        allowed = allowed.index_fill(0, starts[short], value=False)
        starts, stops = starts[~short], stops[~short]
    solid = _merged(starts.tolist(), stops.tolist())
    return [DistanceRange(low + start, 1, allowed[start:stop]) for start, stop in solid] + comb


def _comb(
    starts: Tensor, stops: Tensor, allowed: Tensor, low: int, frame: AttentionShape
) -> list[DistanceRange]:
    """Lone distances as one comb, if they have a step in common that is worth it."""
    if len(starts) < 2 or bool((stops - starts > 1).any()):
        return []
    step = math.gcd(*set(starts.diff().tolist()))
    if step == 1 or frame.queries < TOOTH * step:
        return []
    first, last = int(starts[0]), int(starts[-1])
    teeth = torch.zeros((last - first) // step + 1, dtype=torch.bool, device=allowed.device)
    teeth[(starts - first) // step] = True
    return [DistanceRange(low + first, step, teeth)]


def _merged(starts: list[int], stops: list[int]) -> list[tuple[int, int]]:
    """Runs with no more than `GAP` between them as one."""
    found = list[tuple[int, int]]()
    for start, stop in zip(starts, stops, strict=True):
        if found and start - found[-1][1] <= GAP:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def _band(reach: DistanceRange, frame: AttentionShape, side: int) -> list[Part]:
    """A comb is a plain band in each class of rows; of step 1 there is one class."""
    found, step = list[Part](), reach.step
    for first in range(min(step, frame.queries)):
        key = (first + frame.offset - reach.low) % step
        if key >= frame.keys:
            continue
        queries = Strided(first, 1, len(range(first, frame.queries, step)), step=step)
        keys = Strided(key, 1, len(range(key, frame.keys, step)), step=step)
        shift = (first + frame.offset - key - reach.low) // step
        found += _plain(queries, keys, Band(reach.allowed, shift), _side(reach, side))
    return found


def _side(reach: DistanceRange, side: int) -> int:
    """Rows of a block: fewer for a narrow band, more for a wide one."""
    width = len(reach.allowed)
    if width < side:
        return max(32, side // 2)
    return min(max(side, width // 16 // side * side), 256)


def _plain(queries: Strided, keys: Strided, band: Band, side: int) -> list[Part]:
    """Blocks whose keys all exist as one part, those at the edges one by one.

    Row i and key j may meet where ``band.allowed[i - j + band.shift]``, counted in ``queries`` and
    ``keys``.
    """
    rows, width, shift = queries.size, len(band.allowed), band.shift
    low = min(max(0, -((shift - width + 1) // side)), rows // side)
    high = max(low, min(rows // side, (keys.size - shift - side) // side + 1))
    edges = [*range(0, low * side, side), *range(high * side, rows, side)]
    found = [_block(queries, keys, band, first, min(first + side, rows)) for first in edges]
    if high > low:
        start = low * side
        inside = Strided(
            queries.start + start * queries.step,
            high - low,
            side,
            side * queries.step,
            queries.step,
        )
        key = start + shift - width + 1
        along = Strided(
            keys.start + key * keys.step, high - low, side + width - 1, side * keys.step, keys.step
        )
        found.append(_part(inside, along, Band(band.allowed, width - 1)))
    return [part for part in found if part is not None]


def _block(queries: Strided, keys: Strided, band: Band, first: int, last: int) -> Part | None:
    """Rows first to last - 1 and the keys in reach of them that exist."""
    key = max(0, first + band.shift - len(band.allowed) + 1)
    stop = min(keys.size, last + band.shift)
    if key >= stop:
        return None
    return _part(
        queries.slice(first, last),
        keys.slice(key, stop),
        Band(band.allowed, first - key + band.shift),
    )


def _part(queries: Strided, keys: Strided, band: Band) -> Part:
    everything = band.everything(queries.size, keys.size)
    return Part(queries, keys, band=None if everything else band)


def _asked(part: Part, rest: Mask, frame: AttentionShape) -> list[Part]:
    """The part without the blocks that the rest refuses, the others split by its word."""
    found = list[tuple[int, int, bool]]()
    waiting = [(0, part.queries.count)]
    while waiting:
        first, last = waiting.pop()
        kind = rest.tile(*_hull(part.blocks(first, last), frame))
        if kind is Tile.MIXED and last - first > 1:
            middle = (first + last) // 2
            waiting += [(middle, last), (first, middle)]
        elif kind is not Tile.EMPTY:
            mixed = kind is Tile.MIXED
            if found and found[-1][1:] == (first, mixed):
                first = found.pop()[0]
            found.append((first, last, mixed))
    pieces = [(part.blocks(first, last), mixed) for first, last, mixed in found]
    return [
        Part(
            each.queries,
            each.keys,
            rest.restrict(*_hull(each, frame)) if mixed else None,
            each.band,
        )
        for each, mixed in pieces
    ]


def _hull(part: Part, frame: AttentionShape) -> tuple[range, range]:
    """The positions of the queries and the keys from the first to the last."""
    ends = []
    for rows in (part.queries, part.keys):
        if not isinstance(rows, Strided):
            raise TypeError("bands: blocks of a band lie evenly")
        last = rows.start + (rows.count - 1) * rows.jump + (rows.size - 1) * rows.step
        ends.append((rows.start, last + 1))
    (first, last), keys = ends
    return range(first + frame.offset, last + frame.offset), range(*keys)


MOST = 8
"""How many alternatives a mask is multiplied out into at most."""


def parts(mask: Mask, frame: AttentionShape, side: int) -> list[Part]:
    """The parts that hold every pair the mask allows exactly once.

    Alternatives that depend on the distance only are one family of bands; those that need the
    place as well are bands or lines, less what came before; whatever is left is tiles.

    Args:
        mask: resolved for the frame.
        frame: the outer shape.
        side: rows of a block of queries.
    """
    alternatives = disjuncts(mask)
    near = [each for each in alternatives if each.by_distance]
    found, before = list[Part](), list[Mask]()
    if near:
        band = reduce(Or, near)
        found += bands(band, None, frame, side, len(found))
        before.append(band)
    left = list[Mask]()
    for each in (each for each in alternatives if not each.by_distance):
        family = _family(each, before, frame, side, _next(found))
        if family is None:
            left.append(each)
        else:
            found += family
            before.append(each)
    if left:
        found += tiles(_less(reduce(Or, left), before), frame, side, _next(found))
    return found


def _family(
    mask: Mask, before: list[Mask], frame: AttentionShape, side: int, layer: int
) -> list[Part] | None:
    """One alternative as bands or lines, or None if it is neither."""
    together = conjuncts(mask)
    if any(isinstance(each, GlobalTokens) for each in together):
        return lines(_less(mask, before), together, frame, layer)
    near = [each for each in together if each.by_distance]
    if not near or mostly_dense(reduce(And, near), frame):
        return None
    rest = [each for each in together if not each.by_distance]
    near += [Not(each) for each in before if each.by_distance]
    rest += [Not(each) for each in before if not each.by_distance]
    return bands(reduce(And, near), reduce(And, rest), frame, side, layer)


def _less(mask: Mask, before: list[Mask]) -> Mask:
    return reduce(And, (Not(each) for each in before), mask)


def _next(found: list[Part]) -> int:
    return 1 + max((part.layer for part in found), default=-1)


def disjuncts(mask: Mask) -> list[Mask]:
    """Masks whose union the mask is, none of them an Or, unless there were too many."""
    if isinstance(mask, Or):
        return disjuncts(mask.left) + disjuncts(mask.right)
    if isinstance(mask, And) and not mask.by_distance:
        left, right = disjuncts(mask.left), disjuncts(mask.right)
        if len(left) * len(right) <= MOST:
            return [And(one, other) for one in left for other in right]
    return [mask]


def conjuncts(mask: Mask) -> list[Mask]:
    """Masks whose intersection the mask is, none of them an And."""
    if isinstance(mask, And):
        return conjuncts(mask.left) + conjuncts(mask.right)
    return [mask]


def lines(mask: Mask, together: list[Mask], frame: AttentionShape, layer: int) -> list[Part]:
    """The parts of a mask that allows nothing outside the columns and rows of global tokens.

    Args:
        mask: what the parts hold.
        together: masks that must all allow a pair of it; one at least is `GlobalTokens`.
        frame: the outer shape.
        layer: of the columns; the rows are the next.
    """
    tokens = next(each for each in together if isinstance(each, GlobalTokens))
    chosen = tokens.chosen.any(0).nonzero()[:, 0].to(frame.device)
    keys = chosen[chosen < frame.keys]
    rows = chosen - frame.offset
    rows = rows[(rows >= 0) & (rows < frame.queries)] if tokens.symmetric else rows[:0]
    everybody, everything = Strided(0, 1, frame.queries), Strided(0, 1, frame.keys)
    found = list[Part]()
    if len(keys):
        found.append(Part(everybody, Gathered(keys[None]), mask, layer=layer))
    if len(rows):
        rest = And(mask, Not(KeyColumns(keys)))
        found.append(Part(Gathered(rows[None]), everything, rest, layer=layer + 1))
    return found


@dataclass(frozen=True, repr=False, eq=False)
class KeyColumns(Mask):
    """Every query may attend to the keys of these numbers, and to no other."""

    numbers: Tensor

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del b, h, q
        return torch.isin(k, self.numbers)

    def tile(self, q: range, k: range) -> Tile:
        del q, k
        return Tile.MIXED

    @property
    def name(self) -> str:
        return f"columns({self.numbers.tolist()})"
