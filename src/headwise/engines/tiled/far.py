"""Pairs far apart, whose position needs no bias: other keys and values stand for it.

The pairs of a mask fall into three places: those behind a query by at least the reach of the
position, those ahead of it by as much, and those near. All queries of a block have the same keys
in each place, so that what is far is a rectangle.
"""

from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from headwise.engines.tiled.bands import wide
from headwise.engines.tiled.layers import conjuncts, disjuncts, parts
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.work import Work
from headwise.masks import Mask, Tile
from headwise.masks.base import And
from headwise.shapes import Frame, Index, Truth

BLOCK = 256
"""Queries that have the same keys in each place."""

GRAIN = 64
"""Keys of which each place is made."""

NEAR, BEHIND, AHEAD = 0, -1, 1

WORTH = 0.5
"""The share of the keys that may be near for it to be worth telling places apart."""


@dataclass(frozen=True, repr=False)
class Place(Mask):
    """The pairs in one place.

    Attributes:
        which: `NEAR`, `BEHIND` or `AHEAD`.
        reach: the distance from which a pair may count as far.
    """

    which: int
    reach: int

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del b, h
        block = torch.div(q, BLOCK, rounding_mode="floor") * BLOCK
        first = torch.div(block - self.reach + 1, GRAIN, rounding_mode="floor") * GRAIN
        last = -torch.div(1 - BLOCK - self.reach - block, GRAIN, rounding_mode="floor") * GRAIN
        if self.which == BEHIND:
            return k < first
        return k >= last if self.which == AHEAD else (k >= first) & (k < last)

    def tile(self, q: range, k: range) -> Tile:
        (first, last), (further, furthest) = self._ends(q.start), self._ends(q.stop - 1)
        if self.which == BEHIND:
            full, empty = k.stop <= first, k.start >= further
        elif self.which == AHEAD:
            full, empty = k.start >= furthest, k.stop <= last
        else:
            full = k.start >= further and k.stop <= last
            empty = k.stop <= first or k.start >= furthest
        return Tile.FULL if full else Tile.EMPTY if empty else Tile.MIXED

    def _ends(self, query: int) -> tuple[int, int]:
        """The first key that is near a query, and the first that is ahead."""
        block = query // BLOCK * BLOCK
        first = (block - self.reach + 1) // GRAIN * GRAIN
        return first, -((1 - BLOCK - self.reach - block) // GRAIN) * GRAIN

    @property
    def name(self) -> str:
        return f"place({self.which}, {self.reach})"


def pays(mask: Mask, frame: Frame, reach: int) -> bool:
    """Whether most pairs of a mask are far: it is no band, and the sequence is long."""
    if BLOCK + 2 * (reach + GRAIN) > WORTH * frame.keys or len(disjuncts(mask)) > 1:
        return False
    near = [each for each in conjuncts(mask) if each.by_distance]
    return not near or wide(reduce(And, near), frame)


def planned(work: Work, side: int) -> list[Part]:
    """The parts of an attention, each in its place.

    Args:
        work: the attention.
        side: rows of a block of queries, where places are not told apart.
    """
    if work.far is None:
        return parts(work.mask, work.frame, side)
    found, layer = list[Part](), 0
    for which in (NEAR, BEHIND, AHEAD):
        place = Place(which, work.far.reach)
        here = parts(And(work.mask, place), work.frame, GRAIN)
        found += [replace(each, place=which, layer=each.layer + layer) for each in here]
        layer = 1 + max((each.layer for each in found), default=-1)
    return found


def rows_of(work: Work, part: Part) -> tuple[Tensor, Tensor]:
    """The keys and values that a part reads, whole."""
    if work.far is None or part.place == NEAR:
        return work.k, work.v
    number = 0 if part.place == BEHIND else 1
    return work.far.keys[number], work.far.values[number]
