"""Blocks of queries that see blocks of keys."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks.base import Mask, Tile, only
from headwise.masks.checks import whole
from headwise.shapes import Frame, Index, Truth, dense


@dataclass(frozen=True, repr=False, eq=False)
class BlockSparse(Mask):
    """The mask of `block_sparse`. ``layout`` is (H or 1, query blocks, key blocks)."""

    layout: Tensor
    block: int

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del b
        layout = self.layout.to(k.device)
        _, rows, columns = layout.shape
        row, column = q // self.block, k // self.block
        inside = (row >= 0) & (row < rows) & (column < columns)
        head = h if len(layout) > 1 else only(h)
        return inside & layout[head, row.clamp(0, rows - 1), column.clamp(0, columns - 1)]

    def tile(self, q: range, k: range) -> Tile:
        rows = slice(max(q[0] // self.block, 0), max(q[-1] // self.block + 1, 0))
        columns = slice(k[0] // self.block, k[-1] // self.block + 1)
        part = self.layout[:, rows, columns]
        if not bool(part.any()):
            return Tile.EMPTY
        inside = q[0] >= 0 and q[-1] < self.layout.shape[1] * self.block
        inside = inside and k[-1] < self.layout.shape[2] * self.block
        return Tile.FULL if inside and bool(part.all()) else Tile.MIXED

    def seams(self, stop: int) -> frozenset[int]:
        return frozenset(range(self.block, stop, self.block))

    def spots(self) -> list[tuple[range, range]] | None:
        def positions(number: int) -> range:
            return range(number * self.block, (number + 1) * self.block)

        chosen = self.layout.any(0).nonzero().tolist()
        return [(positions(row), positions(column)) for row, column in chosen]

    @property
    def name(self) -> str:
        return f"block_sparse(<{tuple(self.layout.shape)}>, {self.block})"

    def resolve(self, frame: Frame) -> Mask:
        if len(self.layout) not in (1, frame.heads):
            raise BadValue(
                "block_sparse: the layout has {num_layout} heads, the call {heads}; give "
                "one layout for all heads, or one for each",
                num_layout=len(self.layout),
                heads=frame.heads,
            )
        return self


def block_sparse(layout: Tensor, block: int) -> Mask:
    """A block of queries sees the blocks of keys that its row of the layout names.

    What lies outside the layout is not seen; no length has to be a multiple of the block.

    Args:
        layout: booleans (query blocks, key blocks), or (H, query blocks, key blocks).
        block: how many positions a block has, at least 1.

    Raises:
        BadType: if the layout is not boolean, or the block no integer.
        BadValue: if the layout has another rank or no block, or the block is below 1.

    Source: Gray et al. 2017, block-sparse kernels; Zaheer et al. 2020 (BigBird), appendix D.

    Example:
        >>> print(block_sparse(torch.tensor([[True, False], [True, True]]), 2).draw(4))
        ■ ■ · ·
        ■ ■ · ·
        ■ ■ ■ ■
        ■ ■ ■ ■
    """
    whole("block_sparse", "block", block, 1, Text("64 is usual"))
    if not isinstance(layout, Tensor) or layout.dtype != torch.bool:
        got = layout.dtype if isinstance(layout, Tensor) else type(layout).__name__
        raise BadType(
            "block_sparse: the layout must be a boolean tensor, got {got}; use layout.bool()",
            got=got,
        )
    dense("block_sparse", layout)
    if layout.dim() not in (2, 3) or 0 in layout.shape:
        raise BadValue(
            "block_sparse: the layout must be (query blocks, key blocks) or (H, query "
            "blocks, key blocks), got {layout_shape}",
            layout_shape=tuple(layout.shape),
        )
    return BlockSparse(layout if layout.dim() == 3 else layout[None], block)
