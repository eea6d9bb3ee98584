"""Tiles of a mask that is no band, found by bisection; equal ones are merged into one part."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from headwise.engines.tiled.parts import Band, IndexedRows, Part, StridedRows, allowed_distances
from headwise.masks import Mask, Tile
from headwise.shapes import AttentionShape

Run = tuple[int, int]  # from one number to before another


@dataclass(frozen=True)
class Stripe:
    """A block of queries, and the keys in the tiles that are not empty.

    Attributes:
        start: number of its first query.
        size: how many queries.
        runs: those keys, in order, as runs that do not touch.
        full: whether it sees all of them.
    """

    start: int
    size: int
    runs: tuple[Run, ...]
    full: bool

    @property
    def width(self) -> int:
        """How many keys."""
        return sum(last - first for first, last in self.runs)


def tiles(mask: Mask, shape: AttentionShape, side: int, layer: int) -> list[Part]:
    """The parts of any mask, from its tiles of about side x side.

    Neighbouring queries that see the same run of keys are one rectangle; those whose run moves
    along with them are overlapping views; the others are gathered, those with about as many keys
    together.
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
    """Every block of queries that sees something."""
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
    """Where tiles begin, and the end: at multiples of side, and at the mask's boundaries.

    The boundaries count if they are not too many, and a multiple near one of them is left out.
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
    """For each block of queries the runs of key tiles that are not empty, and whether full."""
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
    """Where to begin: the mask's allowed blocks if they are made of tiles, else everywhere."""
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
    """Which tiles the positions are, or None if a tile is cut."""
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
    """Whether a stripe starts where the group ends, and sees the same keys or moves along.

    It moves along if it is the group's last moved by its size, keys and all, as all others are.
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
    """Stripes of one run each, all the same or each moved along, as one part."""
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
    """Stripes of one size, each with its keys, and -1 where it has fewer than others."""
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
