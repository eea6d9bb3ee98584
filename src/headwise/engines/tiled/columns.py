"""Some keys, for every query: what the engine has dealt with already."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.masks import Mask, Tile
from headwise.shapes import Index, Truth


@dataclass(frozen=True, repr=False, eq=False)
class Columns(Mask):
    """Every query may attend to the keys of these numbers, and to no other."""

    numbers: Tensor

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del b, h, q
        return torch.isin(k, self.numbers)

    def tile(self, q: range, k: range) -> Tile:
        del q, k
        return Tile.MIXED

    @property
    def name(self) -> str:
        return f"columns({self.numbers.tolist()})"
