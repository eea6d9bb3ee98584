"""Every query attends to every key."""

from dataclasses import dataclass

import torch

from headwise.masks.base import Mask, Tile
from headwise.shapes import Index, Truth


@dataclass(frozen=True, repr=False)
class Full(Mask):
    """The mask of `full`."""

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del b, h
        return torch.ones_like(q + k, dtype=torch.bool)

    def tile(self, q: range, k: range) -> Tile:
        del q, k
        return Tile.FULL

    @property
    def name(self) -> str:
        return "full()"

    @property
    def by_distance(self) -> bool:
        return True


def full() -> Mask:
    """Every query attends to every key: the attention of an encoder.

    Example:
        >>> print(full().draw(2))
        ■ ■
        ■ ■
    """
    return Full()
