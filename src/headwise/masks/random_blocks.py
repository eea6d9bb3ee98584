"""Blocks of keys drawn at random, as in BigBird."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.masks.base import Mask, Tile
from headwise.masks.block_sparse import BlockSparse
from headwise.masks.checks import whole
from headwise.masks.drawn import by_operator
from headwise.shapes import Frame, Index, Truth

MOST = 2**24
"""Pairs of blocks that are drawn."""


@dataclass(frozen=True, repr=False)
class RandomBlocks(Mask):
    """The mask of `random_blocks`; `resolve` draws the layout for a length."""

    block: int
    count: int
    seed: int

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del b, h, q, k
        raise BadValue(
            "random_blocks: the blocks are drawn for a call's length; use "
            "mask.resolve(frame) or mask.dense(frame)"
        )

    def tile(self, q: range, k: range) -> Tile:
        del q, k
        return Tile.MIXED

    @property
    def name(self) -> str:
        return f"random_blocks({self.block}, {self.count}, seed={self.seed})"

    def resolve(self, frame: Frame) -> Mask:
        last = max(frame.keys, frame.queries + frame.offset, 1)
        rows, columns = -(-last // self.block), max(-(-frame.keys // self.block), 1)
        if rows * columns > MOST:
            raise BadValue(
                "random_blocks: expected at most {most} pairs of blocks, got {rows} x "
                "{columns}; take larger blocks",
                most=MOST,
                rows=rows,
                columns=columns,
            )
        draw = drawn_layout if by_operator() else _draw
        return BlockSparse(draw(rows, columns, self.count, self.seed), self.block)


def _draw(rows: int, columns: int, count: int, seed: int) -> Tensor:
    """Row by row, each from its own seed, so that a row does not depend on the others."""
    layout = torch.zeros(1, rows, columns, dtype=torch.bool)
    for row in range(rows):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + row)
        order = torch.randperm(columns, generator=generator)
        layout[0, row, order[:count]] = True
    return layout


@torch.library.custom_op("headwise::random_blocks", mutates_args=())
def drawn_layout(rows: int, columns: int, count: int, seed: int) -> Tensor:
    """The layout (1, query blocks, key blocks) as one node of a graph."""
    return _draw(rows, columns, count, seed)


@drawn_layout.register_fake
def _(rows: int, columns: int, count: int, seed: int) -> Tensor:
    del count, seed
    return torch.empty(1, rows, columns, dtype=torch.bool)


def random_blocks(block: int, count: int, *, seed: int) -> Mask:
    """Each block of queries sees ``count`` blocks of keys drawn at random.

    The same seed and number of keys give the same blocks, in every call and on every device.
    BigBird is ``window(w, w) | global_tokens(g) | random_blocks(b, r, seed=s)``.

    Args:
        block: how many positions a block has, at least 1.
        count: how many blocks of keys are drawn, all of them where there are fewer.
        seed: of the draw, at least 0.

    Raises:
        BadType, BadValue: if an argument is no integer or too small, or, when called, if the
            length has more than 2^24 pairs of blocks.

    Source: Zaheer et al. 2020 (BigBird), section 2, random attention.

    Example:
        >>> mask = random_blocks(2, 1, seed=0)
        >>> [row.count("■") for row in mask.draw(6).splitlines()]
        [2, 2, 2, 2, 2, 2]
    """
    whole("random_blocks", "block", block, 1, Text("64 is usual"))
    whole("random_blocks", "count", count, 1, Text("3 is usual"))
    whole("random_blocks", "seed", seed, 0, Text("any number does"))
    return RandomBlocks(block, count, seed)
