"""Every key, and every key up to the own one."""

from dataclasses import dataclass

import torch

from headwise.masks.mask import Mask, Tile
from headwise.shapes import Index, Truth


@dataclass(frozen=True, repr=False)
class Causal(Mask):
    """The mask of `causal`."""

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del b, h
        return k <= q

    def tile(self, q: range, k: range) -> Tile:
        if k[-1] <= q[0]:
            return Tile.FULL
        return Tile.EMPTY if k[0] > q[-1] else Tile.MIXED

    @property
    def name(self) -> str:
        return "causal()"

    @property
    def by_distance(self) -> bool:
        return True


def causal() -> Mask:
    """Each query attends to its own position and to earlier ones.

    With fewer queries than keys the last query sees every key (lower-right alignment), as with a
    cache. With more queries than keys the first ones see nothing and are blind.

    Source: Vaswani et al. 2017, section 3.2.3.

    Example:
        >>> print(causal().draw(2, 5))
        ■ ■ ■ ■ ·
        ■ ■ ■ ■ ■
    """
    return Causal()


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
