"""Tiles of a mask that is no band: found by halving, those alike taken together."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from headwise.engines.tiled.bands import by_distance
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.rows import Picked, Strided
from headwise.masks import Mask, Tile
from headwise.shapes import Frame

Run = tuple[int, int]
"""Key tiles from one number to before another."""


@dataclass(frozen=True)
class Stripe:
    """A block of queries, and the key tiles that it sees something of.

    Attributes:
        start: number of its first query.
        size: how many queries.
        runs: the key tiles, in order, runs that touch being one.
        full: whether it sees all of them whole.
    """

    start: int
    size: int
    runs: tuple[Run, ...]
    full: bool


def tiles(mask: Mask, frame: Frame, side: int, layer: int) -> list[Part]:
    """The parts of any mask, by its own word on tiles of side x side.

    Neighbouring queries that see the same run of keys are one rectangle; those whose run moves
    along with them are overlapping views; the others are gathered, as many together as have equal
    numbers of key tiles.
    """
    found = list[Part]()
    runs, gathered = list[list[Stripe]](), defaultdict[tuple[int, int], list[Stripe]](list)
    for stripe in stripes(mask, frame, side):
        if len(stripe.runs) > 1:
            gathered[stripe.size, _rounded(stripe)].append(stripe)
        elif runs and (_same(runs[-1], stripe) or _moved(runs[-1], stripe, frame, side)):
            runs[-1].append(stripe)
        else:
            runs.append([stripe])
    for group in runs:
        found.append(_run(group, frame, side, None if group[0].full else mask, layer))
    for (_, width), group in gathered.items():
        found.append(_gather(group, width, frame, side, mask, layer))
    return found


def stripes(mask: Mask, frame: Frame, side: int) -> Iterator[Stripe]:
    """Every block of queries that sees something. Blocks begin at multiples of side."""
    first = frame.offset // side
    last = -(-(frame.offset + frame.queries) // side)
    found = _descend(mask, frame, side, (first, last))
    for block in range(first, last):
        runs = sorted(found.get(block, []))
        if not runs:
            continue
        joined, full = list[Run](), all(whole for _, _, whole in runs)
        for start, stop, _ in runs:
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], stop)
            else:
                joined.append((start, stop))
        where = _clip(block, block + 1, side, frame.offset, frame.offset + frame.queries)
        yield Stripe(where.start - frame.offset, len(where), tuple(joined), full)


def _descend(
    mask: Mask, frame: Frame, side: int, blocks: Run
) -> dict[int, list[tuple[int, int, bool]]]:
    """For each block of queries the runs of key tiles that are not empty, and whether full."""
    found = defaultdict[int, list[tuple[int, int, bool]]](list)
    waiting = [(blocks, (0, -(-frame.keys // side)))]
    while waiting:
        rows, columns = waiting.pop()
        q = _clip(*rows, side, frame.offset, frame.offset + frame.queries)
        k = _clip(*columns, side, 0, frame.keys)
        kind = mask.tile(q, k)
        if kind is Tile.EMPTY:
            continue
        if kind is Tile.FULL or (rows[1] - rows[0] == columns[1] - columns[0] == 1):
            for block in range(*rows):
                found[block].append((*columns, kind is Tile.FULL))
            continue
        waiting += [(row, column) for row in _halves(rows) for column in _halves(columns)]
    return found


def _halves(run: Run) -> list[Run]:
    first, last = run
    middle = (first + last) // 2
    return [run] if last - first == 1 else [(first, middle), (middle, last)]


def _clip(first: int, last: int, side: int, low: int, high: int) -> range:
    return range(max(first * side, low), min(last * side, high))


def _rounded(stripe: Stripe) -> int:
    """How many key tiles to gather: an eighth more at most, so that more stripes go together."""
    many = sum(last - first for first, last in stripe.runs)
    grain = max(1, many // 8)
    return -(-many // grain) * grain


def _same(group: list[Stripe], stripe: Stripe) -> bool:
    """Whether a stripe sees what the whole group sees, and goes on where it ends."""
    last = group[-1]
    follows = last.start + last.size == stripe.start and last.full == stripe.full
    return follows and group[0].runs == last.runs == stripe.runs


def _moved(group: list[Stripe], stripe: Stripe, frame: Frame, side: int) -> bool:
    """Whether a stripe sees what the last of the group sees, one tile on, nothing being cut off."""
    last = group[-1]
    if last.size != side or stripe.size != side or last.full != stripe.full:
        return False
    if len(group) > 1 and group[0].runs == last.runs:
        return False
    (first, stop), (next_first, next_stop) = last.runs[0], stripe.runs[0]
    along = (next_first, next_stop) == (first + 1, stop + 1) and next_stop * side <= frame.keys
    return along and last.start + last.size == stripe.start


def _run(group: list[Stripe], frame: Frame, side: int, mask: Mask | None, layer: int) -> Part:
    first, stop = group[0].runs[0]
    seen = _clip(first, stop, side, 0, frame.keys)
    if group[-1].runs == group[0].runs:
        queries = Strided(group[0].start, 1, sum(stripe.size for stripe in group))
        keys = Strided(seen.start, 1, len(seen))
    else:
        queries = Strided(group[0].start, len(group), side, side)
        keys = Strided(seen.start, len(group), len(seen), side)
    if mask is None:
        return Part(queries, keys, layer=layer)
    last = group[-1].start + group[-1].size + frame.offset
    rows = range(queries.start + frame.offset, last)
    simpler = mask.within(rows, range(keys.start, min(group[-1].runs[0][1] * side, frame.keys)))
    if simpler.by_distance:
        return Part(queries, keys, band=by_distance(simpler, queries, keys, frame), layer=layer)
    return Part(queries, keys, simpler, layer=layer)


def _gather(
    group: list[Stripe], width: int, frame: Frame, side: int, mask: Mask, layer: int
) -> Part:
    """Stripes of one size, each with ``width`` key tiles, -1 where it has fewer."""
    within = torch.arange(side)
    chosen = torch.full((len(group), width), -1)
    for row, stripe in enumerate(group):
        numbers = [tile for run in stripe.runs for tile in range(*run)]
        chosen[row, : len(numbers)] = torch.tensor(numbers)
    keys = (chosen[..., None] * side + within).masked_fill(chosen[..., None] < 0, -1).flatten(1)
    keys = keys.masked_fill(keys >= frame.keys, -1)
    starts = torch.tensor([stripe.start for stripe in group])
    queries = starts[:, None] + torch.arange(group[0].size)
    whole = all(stripe.full for stripe in group)
    return Part(
        Picked(queries.to(frame.device)),
        Picked(keys.to(frame.device)),
        None if whole else mask,
        layer=layer,
    )
