"""A learned vector for each position."""

import torch
from torch import nn

from headwise.errors import BadValue
from headwise.positions.position import (
    Inputs,
    Position,
    Stage,
    check_offset,
    check_size,
    check_width,
)


class Learned(Position):
    """Adds a learned vector for each position, up to a fixed number of positions.

    The table starts as normal noise of standard deviation 0.02, as in BERT and GPT-2.

    Args:
        max_positions: how many positions there are.
        embed_dim: E, the size of the input.

    Raises:
        BadType: if a size is no integer.
        BadValue: if a size is below 1, or, when called, if a position outside the table is needed.

    Source: Gehring et al. 2017 (ConvS2S), section 3.1; Devlin et al. 2019 (BERT).

    Example:
        >>> Learned(8, 4).embed(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 4])
    """

    stages = frozenset({Stage.INPUT})

    def __init__(self, max_positions: int, embed_dim: int) -> None:
        super().__init__()
        check_size("Learned", "max_positions", max_positions)
        check_size("Learned", "embed_dim", embed_dim)
        self.table = nn.Parameter(torch.empty(max_positions, embed_dim))
        nn.init.normal_(self.table, std=0.02)

    def embed(self, x: Inputs, offset: int = 0) -> Inputs:
        positions, embed_dim = self.table.shape
        check_width("Learned", embed_dim, x)
        check_offset("Learned", offset)
        first, last = offset, offset + x.shape[-2]
        if first < 0:
            raise BadValue(
                "Learned: positions {first} to {last_minus_1} were asked for, the table "
                "begins at 0; use an offset of at least 0, and in a layer no more "
                "queries than keys",
                first=first,
                last_minus_1=last - 1,
            )
        if last > positions:
            raise BadValue(
                "Learned: positions {first} to {last_minus_1} were asked for, the table "
                "has 0 to {positions_minus_1}; make it longer with Learned({last}, "
                "{embed_dim})",
                first=first,
                last_minus_1=last - 1,
                positions_minus_1=positions - 1,
                last=last,
                embed_dim=embed_dim,
            )
        return x + self.table[first:last].to(x.dtype)

    def expected_sizes(self) -> dict[str, int]:
        return {"E": self.table.shape[1]}

    def extra_repr(self) -> str:
        return f"{self.table.shape[0]}, {self.table.shape[1]}"
