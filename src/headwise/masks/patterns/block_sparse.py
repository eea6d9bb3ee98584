"""Masks of whole blocks: from a layout, and from a random layout (BigBird)."""

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks.arguments import needs_operator
from headwise.masks.mask import Mask, Tile, multiples, zero_index
from headwise.shapes import AttentionShape, Index, Truth, broadcasts, check_dense, check_integer


@dataclass(frozen=True, repr=False, eq=False)
class BlockSparse(Mask):
    """The mask of `block_sparse`."""

    layout: Tensor  # (H or 1, query blocks, key blocks)
    block: int

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        layout = self.layout.to(k.device)
        _, rows, columns = layout.shape
        row, column = q // self.block, k // self.block
        inside = (row >= 0) & (row < rows) & (column < columns)
        head = h if len(layout) > 1 else zero_index(h)
        return inside & layout[head, row.clamp(0, rows - 1), column.clamp(0, columns - 1)]

    def tile(self, q: range, k: range) -> Tile:
        rows = slice(max(q[0] // self.block, 0), max(q[-1] // self.block + 1, 0))
        columns = slice(k[0] // self.block, k[-1] // self.block + 1)
        inside = q[0] >= 0 and q[-1] < self.layout.shape[1] * self.block
        inside = inside and k[-1] < self.layout.shape[2] * self.block
        return Tile.of(self.layout[:, rows, columns], inside)

    def tile_boundaries(self, stop: int, start: int = 0) -> frozenset[int]:
        return multiples(self.block, start, stop)

    def allowed_blocks(self) -> list[tuple[range, range]] | None:
        def positions(number: int) -> range:
            return range(number * self.block, (number + 1) * self.block)

        chosen = self.layout.any(0).nonzero().tolist()
        return [(positions(row), positions(column)) for row, column in chosen]

    @property
    def name(self) -> str:
        return f"block_sparse(<{tuple(self.layout.shape)}>, {self.block})"

    def required_sizes(self) -> dict[str, int]:
        return {"H": len(self.layout)}

    def resolve(self, shape: AttentionShape) -> Mask:
        if not broadcasts(len(self.layout), shape.heads):
            raise BadValue(
                "block_sparse: the layout has {num_layout} heads, the call {heads}; give "
                "one layout for all heads, or one for each",
                num_layout=len(self.layout),
                heads=shape.heads,
            )
        return self


def block_sparse(layout: Tensor, block: int) -> Mask:
    """A block of queries sees the blocks of keys that its row of the layout allows.

    What lies outside the layout is not seen; no length has to be a multiple of the block.

    Args:
        layout: booleans (query blocks, key blocks), or (H, query blocks, key blocks).
        block: how many positions a block has, at least 1.

    Raises:
        BadType, BadValue: if the layout is not boolean or of another rank, or the block below 1.

    Source: Gray et al. 2017, block-sparse kernels; Zaheer et al. 2020 (BigBird), appendix D.

    Example:
        >>> print(block_sparse(torch.tensor([[True, False], [True, True]]), 2).draw(4))
        ■ ■ · ·
        ■ ■ · ·
        ■ ■ ■ ■
        ■ ■ ■ ■
    """
    block = check_integer("block_sparse", "block", block, 1, Text("64 is usual"))
    if not isinstance(layout, Tensor) or layout.dtype != torch.bool:
        got = layout.dtype if isinstance(layout, Tensor) else type(layout).__name__
        raise BadType(
            "block_sparse: the layout must be a boolean tensor, got {got}; use layout.bool()",
            got=got,
        )
    check_dense("block_sparse", layout)
    if layout.dim() not in (2, 3) or 0 in layout.shape:
        raise BadValue(
            "block_sparse: the layout must be (query blocks, key blocks) or (H, query "
            "blocks, key blocks), got {layout_shape}",
            layout_shape=tuple(layout.shape),
        )
    return BlockSparse(layout if layout.dim() == 3 else layout[None], block)


MOST = 2**24  # the largest number of pairs of blocks in a random layout
HEAD_SEEDS = 2_654_435_761  # how far apart the seeds of two heads are, modulo 2^32


@dataclass(frozen=True, repr=False)
class RandomBlocks(Mask):
    """The mask of `random_blocks`; `resolve` draws the layout for a length."""

    block: int
    count: int
    seed: int
    heads: int = 1  # how many heads have blocks of their own; 1 means that all share them

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        raise BadValue(
            "random_blocks: the blocks are drawn for a call's length; use "
            "mask.resolve(shape) or mask.dense(shape)"
        )

    @property
    def name(self) -> str:
        own = "" if self.heads == 1 else f", heads={self.heads}"
        return f"random_blocks({self.block}, {self.count}, seed={self.seed}{own})"

    def required_sizes(self) -> dict[str, int]:
        return {"H": self.heads}

    def resolve(self, shape: AttentionShape) -> Mask:
        last = max(shape.keys, shape.queries + shape.offset, 1)
        rows, columns = -(-last // self.block), max(-(-shape.keys // self.block), 1)
        if self.heads * rows * columns > MOST:
            raise BadValue(
                "random_blocks: expected at most {most} pairs of blocks, got {rows} x "
                "{columns}; take larger blocks",
                most=MOST,
                rows=rows,
                columns=columns,
            )
        draw = drawn_layout if needs_operator() else _draw
        layout = draw(rows, columns, self.count, self.seed, self.heads)
        return BlockSparse(layout, self.block).resolve(shape)


def _draw(rows: int, columns: int, count: int, seed: int, heads: int) -> Tensor:
    """A layout whose rows have seeds of their own, so that they do not depend on each other."""
    layout = torch.zeros(heads, rows, columns, dtype=torch.bool)
    for head, row in product(range(heads), range(rows)):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + row + head * HEAD_SEEDS)
        order = torch.randperm(columns, generator=generator)
        layout[head, row, order[:count]] = True
    return layout


@torch.library.custom_op("headwise::random_blocks", mutates_args=())
def drawn_layout(rows: int, columns: int, count: int, seed: int, heads: int) -> Tensor:
    """The layout (H or 1, query blocks, key blocks) as one node of a graph."""
    return _draw(rows, columns, count, seed, heads)


@drawn_layout.register_fake
def _(rows: int, columns: int, count: int, seed: int, heads: int) -> Tensor:
    del count, seed
    return torch.empty(heads, rows, columns, dtype=torch.bool)


def random_blocks(block: int, count: int, *, seed: int, heads: int = 1) -> Mask:
    """Each block of queries sees ``count`` blocks of keys drawn at random.

    The same seed and number of keys give the same blocks, in every call and on every device.
    BigBird is ``window(w, w) | global_tokens(g) | random_blocks(b, r, seed=s)``.

    Args:
        block: how many positions a block has, at least 1.
        count: how many blocks of keys are drawn, all of them where there are fewer.
        seed: of the draw, at least 0.
        heads: H for blocks of its own in each head, as in BigBird; 1 for the same in all heads.

    Raises:
        BadType, BadValue: if an argument is no integer or too small, or, when called, if the
            length has more than 2^24 pairs of blocks or H is another.

    Source: Zaheer et al. 2020 (BigBird), section 2, random attention.

    Example:
        >>> mask = random_blocks(2, 1, seed=0)
        >>> [row.count("■") for row in mask.draw(6).splitlines()]
        [2, 2, 2, 2, 2, 2]
    """
    block = check_integer("random_blocks", "block", block, 1, Text("64 is usual"))
    count = check_integer("random_blocks", "count", count, 1, Text("3 is usual"))
    seed = check_integer("random_blocks", "seed", seed, 0, Text("any number does"))
    heads = check_integer("random_blocks", "heads", heads, 1, Text("1 draws once for all heads"))
    return RandomBlocks(block, count, seed, heads)
