"""Tiles of a mask that is not a band, found by bisection; equal tiles are merged into one part."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from headwise.engines.tiled.parts import Band, IndexedRows, Part, StridedRows, allowed_distances
from headwise.masks import Mask, Tile
from headwise.shapes import AttentionShape

Run = tuple[int, int]  # start and stop of a range


@dataclass(frozen=True)
class Stripe:
    """A block of queries, and the keys in its tiles that are not empty.

    Attributes:
        start: index of the first query.
        size: number of queries.
        runs: the keys, as ordered ranges that do not touch.
        full: whether the queries may attend to all of these keys.
    """

    start: int
    size: int
    runs: tuple[Run, ...]
    full: bool

    @property
    def width(self) -> int:
        """The number of keys."""
        return sum(last - first for first, last in self.runs)


def tiles(mask: Mask, shape: AttentionShape, side: int, layer: int) -> list[Part]:
    """Return the parts of any mask, from its tiles of about side x side.

    Neighbouring queries that attend to the same range of keys form one rectangle. If the range
    moves along with the queries, they form overlapping views. The remaining stripes are gathered,
    together with stripes that have about as many keys.
    """
    groups: list[list[Stripe]] = []
    gathered: dict[Run, list[Stripe]] = defaultdict(list)
    for stripe in stripes(mask, shape, side):
        if len(stripe.runs) > 1:
            grain = max(side, stripe.width // 8 // side * side)
            gathered[stripe.size, -(-stripe.width // grain) * grain].append(stripe)
        elif groups and _continues(groups[-1], stripe):
            groups[-1].append(stripe)
        else:
            groups.append([stripe])
    views = [_view(group, shape, None if group[0].full else mask, layer) for group in groups]
    return views + [_gather(group, shape, mask, layer) for group in gathered.values()]


def stripes(mask: Mask, shape: AttentionShape, side: int) -> Iterator[Stripe]:
    """Yield every block of queries that may attend to some key."""
    first, last = shape.offset, shape.offset + shape.queries
    rows = _cuts(mask.tile_boundaries(last, first), first, last, side)
    columns = _cuts(mask.tile_boundaries(shape.keys), 0, shape.keys, side)
    for block, tiles_seen in sorted(_descend(mask, rows, columns).items()):
        runs: list[Run] = []
        for first, last, _ in sorted(tiles_seen):
            start = columns[first]
            if runs and runs[-1][1] == start:
                start = runs.pop()[0]
            runs.append((start, columns[last]))
        full = all(whole for _, _, whole in tiles_seen)
        size = rows[block + 1] - rows[block]
        yield Stripe(rows[block] - shape.offset, size, tuple(runs), full)


def _cuts(boundaries: frozenset[int], start: int, stop: int, side: int) -> list[int]:
    """Return where tiles begin, and the end: at multiples of ``side`` and at the mask's boundaries.

    Boundaries are ignored if there are too many. A multiple close to a boundary is left out.
    """
    inside = {place for place in boundaries if start < place < stop}
    if len(inside) > (stop - start) // side:
        inside = set()
    near = {place + by for place in inside for by in range(-(side // 2) + 1, side // 2)}
    even = (place for place in range(-(-start // side) * side, stop, side) if place not in near)
    return sorted({start, stop, *inside, *even})


def _descend(
    mask: Mask, rows: list[int], columns: list[int]
) -> dict[int, list[tuple[int, int, bool]]]:
    """Return for each block of queries its nonempty ranges of key tiles, and if each is full."""
    seen: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    waiting = _starts(mask, rows, columns)
    while waiting:
        (top, bottom), (left, right) = waiting.pop()
        kind = mask.tile(range(rows[top], rows[bottom]), range(columns[left], columns[right]))
        if kind is Tile.FULL or (kind is Tile.MIXED and bottom - top == right - left == 1):
            for block in range(top, bottom):
                seen[block].append((left, right, kind is Tile.FULL))
        elif kind is Tile.MIXED:
            waiting += product(_halves((top, bottom)), _halves((left, right)))
    return seen


def _starts(mask: Mask, rows: list[int], columns: list[int]) -> list[tuple[Run, Run]]:
    """Return the rectangles to bisect: the mask's allowed blocks if possible, else everything."""
    everywhere = [((0, len(rows) - 1), (0, len(columns) - 1))]
    allowed = mask.allowed_blocks()
    if allowed is None:
        return everywhere
    blocks = []
    for q, k in allowed:
        row, column = _tiles_of(q, rows), _tiles_of(k, columns)
        if row is None or column is None:
            return everywhere
        if row[0] < row[1] and column[0] < column[1]:
            blocks.append((row, column))
    return blocks


def _tiles_of(positions: range, cuts: list[int]) -> Run | None:
    """Return the range of tiles that the positions cover, or None if they cut a tile."""
    start, stop = max(positions.start, cuts[0]), min(positions.stop, cuts[-1])
    if start >= stop:
        return 0, 0
    first, last = bisect_left(cuts, start), bisect_left(cuts, stop)
    return (first, last) if cuts[first] == start and cuts[last] == stop else None


def _halves(run: Run) -> list[Run]:
    first, last = run
    middle = (first + last) // 2
    return [run] if last - first == 1 else [(first, middle), (middle, last)]


def _continues(group: list[Stripe], stripe: Stripe) -> bool:
    """Return whether a stripe starts where the group ends and fits its key ranges.

    It fits if all keys are equal, or if every stripe is the one before it moved by its size.
    """
    last = group[-1]
    if last.start + last.size != stripe.start or last.full != stripe.full:
        return False
    constant = group[0].runs == last.runs
    if constant and last.runs == stripe.runs:
        return True
    if last.size != stripe.size or (constant and len(group) > 1):
        return False
    first, stop = last.runs[0]
    return stripe.runs[0] == (first + last.size, stop + last.size)


def _view(group: list[Stripe], shape: AttentionShape, mask: Mask | None, layer: int) -> Part:
    """Return stripes of one range each, all equal or all moved along, as one part."""
    one, last = group[0], group[-1]
    start, stop = one.runs[0]
    if last.runs == one.runs:
        queries = StridedRows(one.start, 1, sum(stripe.size for stripe in group))
        keys = StridedRows(start, 1, stop - start)
    else:
        queries = StridedRows(one.start, len(group), one.size, one.size)
        keys = StridedRows(start, len(group), stop - start, one.size)
    if mask is None:
        return Part(queries, keys, layer=layer)
    rows = range(one.start + shape.offset, last.start + last.size + shape.offset)
    simpler = mask.restrict(rows, range(start, last.runs[0][1]))
    if simpler.by_distance:
        nearest = one.start + shape.offset - start - keys.size + 1
        ends = nearest, nearest + keys.size + queries.size - 1
        band = Band(allowed_distances(simpler, *ends, shape.device), keys.size - 1)
        return Part(queries, keys, band=band, layer=layer)
    return Part(queries, keys, simpler, layer=layer)


def _gather(group: list[Stripe], shape: AttentionShape, mask: Mask, layer: int) -> Part:
    """Return stripes of one size as one part; -1 fills the rows of stripes with fewer keys."""
    keys = torch.full((len(group), max(stripe.width for stripe in group)), -1)
    for row, stripe in enumerate(group):
        keys[row, : stripe.width] = torch.cat([torch.arange(*run) for run in stripe.runs])
    starts = torch.tensor([stripe.start for stripe in group])
    queries = starts[:, None] + torch.arange(group[0].size)
    whole = all(stripe.full for stripe in group)
    return Part(
        IndexedRows(queries.to(shape.device)),
        IndexedRows(keys.to(shape.device)),
        None if whole else mask,
        layer=layer,
    )
