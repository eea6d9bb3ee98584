"""Bands: pairs at given distances, as overlapping views of the keys."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.engines.tiled.parts import Band, Part
from headwise.engines.tiled.rows import Strided
from headwise.masks import Mask, Tile
from headwise.shapes import Frame

GAP = 64
"""Distances that nobody sees, above which a band is rather two bands."""

RUN = 4
"""Distances in a row that make a band of their own beside a comb."""

TOOTH = 16
"""Queries in each class of a comb, below which it is not worth taking apart."""


@dataclass(frozen=True, eq=False)
class Reach:
    """Distances ``low + t step``, of which allowed[t] are in."""

    low: int
    step: int
    allowed: Tensor


def bands(near: Mask, rest: Mask | None, frame: Frame, side: int, layer: int) -> list[Part]:
    """The parts of ``near & rest``.

    Args:
        near: depends on the distance only.
        rest: any mask, or None; where its tiles are neither empty nor full it is asked pair by
            pair.
        frame: the outer shape.
        side: rows of a block of queries, for a band about 500 wide.
        layer: of the first band; each further one is a layer above.
    """
    found = list[Part]()
    for number, reach in enumerate(reaches(near, frame)):
        for part in _band(reach, frame, side):
            kept = [part] if rest is None else _asked(part, rest, frame)
            found += [
                Part(each.queries, each.keys, each.mask, each.band, layer + number) for each in kept
            ]
    return found


def wide(near: Mask, frame: Frame) -> bool:
    """Whether the bands of a mask hold more than half of the keys: the rest decides the cost."""
    return 2 * sum(len(reach.allowed) for reach in reaches(near, frame)) > frame.keys


def reaches(near: Mask, frame: Frame) -> list[Reach]:
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
    return [Reach(low + start, 1, allowed[start:stop]) for start, stop in solid] + comb


def _comb(starts: Tensor, stops: Tensor, allowed: Tensor, low: int, frame: Frame) -> list[Reach]:
    """Lone distances as one comb, if they have a step in common that is worth it."""
    if len(starts) < 2 or bool((stops - starts > 1).any()):
        return []
    step = math.gcd(*set(starts.diff().tolist()))
    if step == 1 or frame.queries < TOOTH * step:
        return []
    first, last = int(starts[0]), int(starts[-1])
    teeth = torch.zeros((last - first) // step + 1, dtype=torch.bool, device=allowed.device)
    teeth[(starts - first) // step] = True
    return [Reach(low + first, step, teeth)]


def _merged(starts: list[int], stops: list[int]) -> list[tuple[int, int]]:
    """Runs with no more than `GAP` between them as one."""
    found = list[tuple[int, int]]()
    for start, stop in zip(starts, stops, strict=True):
        if found and start - found[-1][1] <= GAP:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def _band(reach: Reach, frame: Frame, side: int) -> list[Part]:
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


def _side(reach: Reach, side: int) -> int:
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


def _asked(part: Part, rest: Mask, frame: Frame) -> list[Part]:
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
            each.queries, each.keys, rest.within(*_hull(each, frame)) if mixed else None, each.band
        )
        for each, mixed in pieces
    ]


def by_distance(mask: Mask, queries: Strided, keys: Strided, frame: Frame) -> Band:
    """A mask that depends on the distance only, for blocks of rows without a step."""
    first = queries.start + frame.offset - keys.start
    distances = torch.arange(first - keys.size + 1, first + queries.size, device=frame.device)
    zero = torch.zeros((), dtype=torch.long, device=frame.device)
    allowed = mask.rule(zero, zero, distances, zero).expand(len(distances))
    return Band(allowed, keys.size - 1)


def _hull(part: Part, frame: Frame) -> tuple[range, range]:
    """The positions of the queries and the keys from the first to the last."""
    ends = []
    for rows in (part.queries, part.keys):
        if not isinstance(rows, Strided):
            raise TypeError("bands: blocks of a band lie evenly")
        last = rows.start + (rows.count - 1) * rows.jump + (rows.size - 1) * rows.step
        ends.append((rows.start, last + 1))
    (first, last), keys = ends
    return range(first + frame.offset, last + frame.offset), range(*keys)
