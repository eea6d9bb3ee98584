"""Blocks of one round: some queries of one chunk, and the keys of it and of the chunk before."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.masks.patterns.lsh import Hashed


@dataclass(frozen=True, eq=False)
class Blocks:
    """Which rows meet in one round; -1 stands for no row.

    Attributes:
        queries: (B, H, n, r), every query once.
        table: (B, H, n, 2 c), the keys of each block; or, where ``chained``, (B, H, n + 1, c), of
            which block i has i and i + 1, so that a key is read once and looked at twice.
        chained: which of the two it is.
    """

    queries: Tensor
    table: Tensor
    chained: bool

    @classmethod
    def of(cls, mask: Hashed) -> "Blocks":
        """The blocks of a mask of one round."""
        keys, home = _chunks(mask), mask.chunks[0][:, :, 0].long()
        group = home.shape[1] // keys.shape[1]
        queries, chunk = _sorted(home, keys.shape[2], min(mask.chunk, home.shape[2]))
        last = (mask.real.to(chunk.device).view(-1, 1, 1) - 1).clamp(min=0) // mask.chunk
        before = torch.where(chunk == 0, last, chunk - 1).masked_fill(last == 0, -1)
        in_order = torch.arange(keys.shape[2], device=keys.device)
        if group == 1 and chunk.shape[2] == len(in_order) and bool((chunk == in_order).all()):
            return cls(queries, torch.cat([_picked(keys, before[:, :, :1]), keys], 2), True)
        keys = keys.repeat_interleave(group, 1)
        table = torch.cat([_picked(keys, before), _picked(keys, chunk)], 3)
        return cls(queries, table, False)

    @property
    def keys(self) -> Tensor:
        """(B, H, n, 2 c), the keys of each block, likewise."""
        return self._overlapping(self.table.contiguous())

    def pieces(self, pairs: int) -> Iterator["Blocks"]:
        """Some blocks at a time, of about so many pairs for one sample and head."""
        width = self.table.shape[3] * (2 if self.chained else 1)
        many = max(1, pairs // (self.queries.shape[3] * width))
        for first in range(0, self.queries.shape[2], many):
            last = min(first + many, self.queries.shape[2])
            table = self.table[:, :, first : last + self.chained]
            yield Blocks(self.queries[:, :, first:last], table, self.chained)

    def take_keys(self, rows: Tensor) -> Tensor:
        """(B, G, Lk, D) as (B, H, n, 2 c, D), a view of overlapping blocks where chained."""
        return self._overlapping(take(rows, self.table))

    def key_numbers(self, numbers: Tensor) -> Tensor:
        """(B, G, Lk) as (B, H, n, 2 c), likewise."""
        return self._overlapping(one(numbers, self.table))

    def _overlapping(self, found: Tensor) -> Tensor:
        if not self.chained:
            return found
        batch, heads, n, size, *dim = found.shape
        return found.as_strided((batch, heads, n - 1, 2 * size, *dim), found.stride())

    def add_keys(self, into: Tensor, blocks: Tensor) -> None:
        """Add (B, H, n, 2 c, D) to the rows of (B, G, Lk, D), which lie one after the other."""
        if self.chained:
            size = self.table.shape[3]
            folded = blocks.new_zeros(*self.table.shape, blocks.shape[4])
            folded[:, :, :-1] += blocks[..., :size, :]
            folded[:, :, 1:] += blocks[..., size:, :]
            blocks = folded
        _add(into, self.table, blocks)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Rows of (B, X, L, D) by their numbers (B, H, n, r): (B, H, n, r, D); -1 gives any row."""
    flat = _numbers(rows, index.clamp(min=0)).flatten()
    return rows.flatten(0, 2).index_select(0, flat).view(*index.shape, rows.shape[3])


def one(numbers: Tensor, index: Tensor) -> Tensor:
    """Numbers of (B, X, L) by their places (B, H, n, r); -1 gives any."""
    shared = index.clamp(min=0).view(*numbers.shape[:2], -1)
    return numbers.gather(2, shared).view(index.shape)


def put(into: Tensor, index: Tensor, blocks: Tensor) -> None:
    """Write blocks into their rows of (B, X, L, D), which lie one after the other."""
    where, found = _present(into, index, blocks)
    into.view(-1, into.shape[3]).index_copy_(0, where, found)


def _add(into: Tensor, index: Tensor, blocks: Tensor) -> None:
    where, found = _present(into, index, blocks)
    flat = into.view(-1, into.shape[3])
    flat.scatter_add_(0, where[:, None].expand_as(found), found)


def _present(into: Tensor, index: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The blocks' rows that are some row of ``into``: which, and what stands in them."""
    where, found = _numbers(into, index).flatten(), blocks.flatten(0, 3).to(into.dtype)
    present = (index >= 0).flatten()
    if bool(present.all()):
        return where, found
    return where[present], found[present]


def _numbers(rows: Tensor, index: Tensor) -> Tensor:
    """Row numbers as those of (B X L, D)."""
    batch, shared, length = rows.shape[:3]
    sample = torch.arange(batch, device=rows.device)[:, None] * shared
    head = torch.arange(index.shape[1], device=rows.device) // (index.shape[1] // shared)
    return (sample + head)[:, :, None, None] * length + index


def _chunks(mask: Hashed) -> Tensor:
    """The numbers of the keys of each chunk, (B, G, m, c)."""
    places = mask.keys[:, :, 0].long()
    many = max(1, -(-int(mask.real.max()) // mask.chunk))
    size = min(mask.chunk, places.shape[2])
    slots = many * size
    table = places.new_full((*places.shape[:2], slots + 1), -1)
    table.scatter_(2, torch.where(places < 0, slots, places), _in_order(places))
    return torch.unflatten(table[..., :slots], 2, (many, size))


def _sorted(home: Tensor, many: int, size: int) -> tuple[Tensor, Tensor]:
    """The queries by chunk, in blocks of ``size`` of one chunk each: (B, H, n, r); and its chunk.

    Args:
        home: the chunk of each query, (B, H, Lq), below ``many``.
        many: how many chunks there are.
        size: rows of a block.
    """
    order = home.argsort(dim=-1, stable=True)
    chunk = home.gather(-1, order)
    counts = home.new_zeros(*home.shape[:2], many).scatter_add_(-1, home, torch.ones_like(home))
    blocks = (counts + size - 1) // size
    within = _in_order(home) - (counts.cumsum(-1) - counts).gather(-1, chunk)
    number = (blocks.cumsum(-1) - blocks).gather(-1, chunk) + within // size
    most = int(blocks.sum(-1).max())
    queries = home.new_full((*home.shape[:2], most * size), -1)
    queries.scatter_(-1, number * size + within % size, order)
    chunks = home.new_full((*home.shape[:2], most), -1).scatter_(-1, number, chunk)
    return torch.unflatten(queries, 2, (most, size)), chunks


def _picked(keys: Tensor, which: Tensor) -> Tensor:
    """Chunks of (B, H, m, c) by their numbers (B, H, n): (B, H, n, c); -1 has no key."""
    index = which.clamp(min=0)[..., None].expand(-1, -1, -1, keys.shape[3])
    return keys.gather(2, index).masked_fill(which[..., None] < 0, -1)


def _in_order(rows: Tensor) -> Tensor:
    """0, 1, 2, ... along the last axis, in the shape given."""
    return torch.arange(rows.shape[-1], device=rows.device).expand_as(rows)
