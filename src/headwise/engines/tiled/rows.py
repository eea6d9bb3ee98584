"""Blocks of rows of a sequence: which rows, read without a copy where they lie evenly."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Strided:
    """Row r of block n is row ``start + n jump + r step`` of the sequence: a view, never a copy.

    Blocks may overlap, as the keys of neighbouring queries in a window do.
    """

    start: int
    count: int
    size: int
    jump: int = 0
    step: int = 1

    def take(self, rows: Tensor) -> Tensor:
        """(B, X, L, D) as (B, X, count, size, D)."""
        batch, heads, length, dim = rows.stride()
        shape = (rows.shape[0], rows.shape[1], self.count, self.size, rows.shape[3])
        stride = (batch, heads, self.jump * length, self.step * length, dim)
        return rows.as_strided(shape, stride, rows.storage_offset() + self.start * length)

    def put(self, into: Tensor, blocks: Tensor) -> None:
        """Write the blocks into their rows. They must not overlap."""
        self.take(into).copy_(blocks)

    def add(self, into: Tensor, blocks: Tensor) -> None:
        """Add the blocks to their rows; where blocks overlap, a slice at a time that does not."""
        width = self._apart()
        for first in range(0, self.size, width):
            last = min(first + width, self.size)
            self.slice(first, last).take(into).add_(blocks[..., first:last, :])

    def slice(self, first: int, last: int) -> "Strided":
        """Rows first to last - 1 of every block."""
        return replace(self, start=self.start + first * self.step, size=last - first)

    def blocks(self, first: int, last: int) -> "Strided":
        """Blocks first to last - 1."""
        return replace(self, start=self.start + first * self.jump, count=last - first)

    def numbers(self, device: torch.device) -> Tensor:
        """The row numbers, (count, size)."""
        block = torch.arange(self.count, device=device)[:, None] * self.jump
        return self.start + block + torch.arange(self.size, device=device) * self.step

    def _apart(self) -> int:
        """How many rows at the head of each block no other block's head shares."""
        if self.count == 1:
            return self.size
        return self.jump // self.step if self.jump % self.step == 0 else self.size


@dataclass(frozen=True, eq=False)
class Picked:
    """Rows by number, (count, size), copied together; -1 stands for no row.

    What is read at -1 is some row and must be masked.
    """

    index: Tensor

    @property
    def count(self) -> int:
        """The number of blocks."""
        return self.index.shape[0]

    @property
    def size(self) -> int:
        """The number of rows of a block."""
        return self.index.shape[1]

    def take(self, rows: Tensor) -> Tensor:
        """(B, X, L, D) as (B, X, count, size, D)."""
        flat = rows.index_select(2, self._flat(rows))
        return torch.unflatten(flat, 2, (self.count, self.size))

    def put(self, into: Tensor, blocks: Tensor) -> None:
        """Write the blocks into their rows. No row may be named twice, nor -1."""
        into.index_copy_(2, self._flat(into), blocks.flatten(2, 3).to(into.dtype))

    def add(self, into: Tensor, blocks: Tensor) -> None:
        """Add the blocks to their rows."""
        into.index_add_(2, self._flat(into), blocks.flatten(2, 3).to(into.dtype))

    def slice(self, first: int, last: int) -> "Picked":
        """Rows first to last - 1 of every block."""
        return Picked(self.index[:, first:last])

    def blocks(self, first: int, last: int) -> "Picked":
        """Blocks first to last - 1."""
        return Picked(self.index[first:last])

    def numbers(self, device: torch.device) -> Tensor:
        """The row numbers, (count, size)."""
        return self.index.to(device)

    def _flat(self, rows: Tensor) -> Tensor:
        return self.index.clamp(min=0).flatten().to(rows.device)


Rows = Strided | Picked
