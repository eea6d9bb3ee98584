"""A part of an attention: blocks of queries, as many blocks of keys, and the mask of the pairs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.masks import Mask


@dataclass(frozen=True)
class StridedRows:
    """Blocks whose row r of block n is row ``start + n jump + r step`` of the sequence, as a view.

    Blocks may overlap, as the keys of neighbouring queries in a window do.
    """

    start: int
    count: int
    size: int
    jump: int = 0
    step: int = 1

    def take(self, rows: Tensor) -> Tensor:
        """Return (B, X, L, D) as (B, X, count, size, D)."""
        batch, heads, length, dim = rows.stride()
        shape = (rows.shape[0], rows.shape[1], self.count, self.size, rows.shape[3])
        stride = (batch, heads, self.jump * length, self.step * length, dim)
        return rows.as_strided(shape, stride, rows.storage_offset() + self.start * length)

    def put(self, into: Tensor, blocks: Tensor) -> None:
        """Write the blocks into their rows. The blocks must not overlap."""
        self.take(into).copy_(blocks)

    def add(self, into: Tensor, blocks: Tensor) -> None:
        """Add the blocks to their rows, in slices that do not overlap."""
        width = self.size  # number of rows in which consecutive blocks do not overlap
        if self.count > 1 and self.jump % self.step == 0:
            width = self.jump // self.step
        for first in range(0, self.size, width):
            last = min(first + width, self.size)
            self.slice(first, last).take(into).add_(blocks[..., first:last, :])

    def slice(self, first: int, last: int) -> "StridedRows":
        """Return rows first to last - 1 of every block."""
        return replace(self, start=self.start + first * self.step, size=last - first)

    def blocks(self, first: int, last: int) -> "StridedRows":
        """Return blocks first to last - 1."""
        return replace(self, start=self.start + first * self.jump, count=last - first)

    def numbers(self, device: torch.device) -> Tensor:
        """Return the row indices, (count, size)."""
        block = torch.arange(self.count, device=device)[:, None] * self.jump
        return self.start + block + torch.arange(self.size, device=device) * self.step


@dataclass(frozen=True, eq=False)
class IndexedRows:
    """Blocks of rows given by index, (count, size), with the methods of `StridedRows`.

    `take` copies the rows. Index -1 means no row: `take` returns an arbitrary row, which must be
    masked, and `put` does not accept it.
    """

    index: Tensor

    @property
    def count(self) -> int:
        return self.index.shape[0]

    @property
    def size(self) -> int:
        return self.index.shape[1]

    def take(self, rows: Tensor) -> Tensor:
        flat = rows.index_select(2, self._flat(rows))
        return torch.unflatten(flat, 2, (self.count, self.size))

    def put(self, into: Tensor, blocks: Tensor) -> None:
        into.index_copy_(2, self._flat(into), blocks.flatten(2, 3).to(into.dtype))

    def add(self, into: Tensor, blocks: Tensor) -> None:
        into.index_add_(2, self._flat(into), blocks.flatten(2, 3).to(into.dtype))

    def slice(self, first: int, last: int) -> "IndexedRows":
        return IndexedRows(self.index[:, first:last])

    def blocks(self, first: int, last: int) -> "IndexedRows":
        return IndexedRows(self.index[first:last])

    def numbers(self, device: torch.device) -> Tensor:
        return self.index.to(device)

    def _flat(self, rows: Tensor) -> Tensor:
        return self.index.clamp(min=0).flatten().to(rows.device)


Rows = StridedRows | IndexedRows


@dataclass(frozen=True, eq=False)
class Band:
    """A rule by distance inside a block: row r may attend to key j if allowed[r - j + shift].

    Attributes:
        allowed: (T,) booleans; distances outside are not allowed.
        shift: the index in ``allowed`` of row 0 and key 0.
    """

    allowed: Tensor
    shift: int

    def dense(self, rows: int, keys: int) -> Tensor:
        """Return the rule as a mask (rows, keys)."""
        first = self.shift + rows - 1
        places = first - torch.arange(rows + keys - 1, device=self.allowed.device)
        inside = (places >= 0) & (places < len(self.allowed))
        line = inside & self.allowed[places.clamp(0, len(self.allowed) - 1)]
        return line.unfold(0, keys, 1).flip(0)

    def everything(self, rows: int, keys: int) -> bool:
        """Return whether the rule allows every pair of a block."""
        nearest, furthest = self.shift - keys + 1, self.shift + rows - 1
        inside = nearest >= 0 and furthest < len(self.allowed)
        return inside and bool(self.allowed[nearest : furthest + 1].all())


@dataclass(frozen=True, eq=False)
class Part:
    """Blocks of queries, each with one block of keys, whose pairs are computed together.

    In one layer every query row occurs at most once. The results of layer 0 are written; those of
    higher layers are merged into them.

    Attributes:
        queries, keys: the blocks; they contain no query twice.
        mask: the mask, evaluated pair by pair; None if it allows every pair.
        band: the rule by distance, the same in every block; None if it allows every pair.
        layer: 0 for parts whose results are written instead of merged.
        region: NEAR, BEHIND or AHEAD; see `problem.Region`.
    """

    queries: Rows
    keys: Rows
    mask: Mask | None = None
    band: Band | None = None
    layer: int = 0
    region: int = 0

    @property
    def even(self) -> bool:
        """Whether all blocks have the same distances."""
        if isinstance(self.queries, StridedRows) and isinstance(self.keys, StridedRows):
            return self.queries.count == 1 or self.queries.jump == self.keys.jump
        return self.queries.count == 1

    @property
    def pairs(self) -> int:
        """The number of query-key pairs that a head computes."""
        return self.queries.count * self.queries.size * self.keys.size

    def chunks(self, most: int) -> Iterator["Part"]:
        """Yield pieces of about ``most`` pairs: whole blocks, or some rows of one block."""
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
                last = min(first + rows, self.queries.size)
                band = self.band and replace(self.band, shift=self.band.shift + first)
                yield replace(one, queries=one.queries.slice(first, last), band=band)

    def blocks(self, first: int, last: int) -> "Part":
        """Return blocks first to last - 1."""
        queries, keys = self.queries.blocks(first, last), self.keys.blocks(first, last)
        return replace(self, queries=queries, keys=keys)


def allowed_distances(mask: Mask, first: int, stop: int, device: torch.device) -> Tensor:
    """Return for each distance in a range whether a mask by distance allows it."""
    distances = torch.arange(first, stop, device=device)
    zero = torch.zeros((), dtype=torch.long, device=device)
    return mask.rule(zero, zero, distances, zero).expand(len(distances))
