"""A part of an attention: blocks of queries, the block of keys that each looks at, who may."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.engines.tiled.rows import Rows, Strided
from headwise.masks import Mask


@dataclass(frozen=True, eq=False)
class Band:
    """What distances allow inside a block: row r and key j may meet where allowed[r - j + shift].

    Attributes:
        allowed: (T,) booleans; what lies outside is not allowed.
        shift: the place in ``allowed`` of row 0 and key 0.
    """

    allowed: Tensor
    shift: int

    def dense(self, rows: int, keys: int) -> Tensor:
        """Written out, (rows, keys)."""
        first = self.shift + rows - 1
        places = first - torch.arange(rows + keys - 1, device=self.allowed.device)
        inside = (places >= 0) & (places < len(self.allowed))
        line = inside & self.allowed[places.clamp(0, len(self.allowed) - 1)]
        return line.unfold(0, keys, 1).flip(0)

    def everything(self, rows: int, keys: int) -> bool:
        """Whether it allows every pair of a block."""
        nearest, furthest = self.shift - keys + 1, self.shift + rows - 1
        inside = nearest >= 0 and furthest < len(self.allowed)
        return inside and bool(self.allowed[nearest : furthest + 1].all())


@dataclass(frozen=True, eq=False)
class Part:
    """Blocks of queries and keys, numbered from 0, that stand for pairs of one attention.

    Every query row occurs once at most in the parts of one layer, so that the first layer writes
    its results and the others are merged into them.

    Attributes:
        queries: the blocks of queries; no row twice.
        keys: as many blocks of keys.
        mask: the rule that decides pair by pair, or None where it has nothing against any.
        band: what distances allow, the same in every block; None where they allow all.
        layer: 0 for the first, whose rows nobody wrote before.
        place: how far apart its pairs are, see `far`.
    """

    queries: Rows
    keys: Rows
    mask: Mask | None = None
    band: Band | None = None
    layer: int = 0
    place: int = 0

    @property
    def even(self) -> bool:
        """Whether every block has the distances of the first."""
        if isinstance(self.queries, Strided) and isinstance(self.keys, Strided):
            return self.queries.count == 1 or self.queries.jump == self.keys.jump
        return self.queries.count == 1

    @property
    def pairs(self) -> int:
        """How many pairs of query and key a head computes."""
        return self.queries.count * self.queries.size * self.keys.size

    def chunks(self, most: int) -> Iterator["Part"]:
        """The part in pieces of about ``most`` pairs: whole blocks, or some rows of one block."""
        block = self.queries.size * self.keys.size
        if block <= most:
            many = most // block
            for first in range(0, self.queries.count, many):
                yield self.blocks(first, min(first + many, self.queries.count))
            return
        rows = max(1, most // self.keys.size)
        for number in range(self.queries.count):
            one = self.blocks(number, number + 1)
            for first in range(0, self.queries.size, rows):
                yield one.rows(first, min(first + rows, self.queries.size))

    def blocks(self, first: int, last: int) -> "Part":
        """Blocks first to last - 1."""
        return replace(
            self, queries=self.queries.blocks(first, last), keys=self.keys.blocks(first, last)
        )

    def rows(self, first: int, last: int) -> "Part":
        """Query rows first to last - 1 of every block."""
        band = self.band and replace(self.band, shift=self.band.shift + first)
        return replace(self, queries=self.queries.slice(first, last), band=band)
