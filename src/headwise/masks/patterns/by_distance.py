"""Masks by the distance from query to key: full, causal, window and dilated."""

from dataclasses import dataclass

import torch

from headwise.lang import Text
from headwise.masks.mask import Mask, Tile
from headwise.shapes import Index, Truth, check_integer


@dataclass(frozen=True, repr=False)
class Causal(Mask):
    """The mask of `causal`."""

    name, by_distance = "causal()", True

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return k <= q

    def tile(self, q: range, k: range) -> Tile:
        if k[-1] <= q[0]:
            return Tile.FULL
        return Tile.EMPTY if k[0] > q[-1] else Tile.MIXED


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

    name, by_distance = "full()", True

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return torch.ones_like(q + k, dtype=torch.bool)

    def tile(self, q: range, k: range) -> Tile:
        return Tile.FULL


def full() -> Mask:
    """Every query attends to every key: the attention of an encoder.

    Example:
        >>> print(full().draw(2))
        ■ ■
        ■ ■
    """
    return Full()


@dataclass(frozen=True, repr=False)
class Window(Mask):
    """The mask of `window`."""

    left: int
    right: int
    by_distance = True

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return (k >= q - self.left) & (k <= q + self.right)

    def tile(self, q: range, k: range) -> Tile:
        if k[-1] < q[0] - self.left or k[0] > q[-1] + self.right:
            return Tile.EMPTY
        inside = k[0] >= q[-1] - self.left and k[-1] <= q[0] + self.right
        return Tile.FULL if inside else Tile.MIXED

    @property
    def name(self) -> str:
        return f"window({self.left}, {self.right})"


def window(left: int, right: int) -> Mask:
    """Each query attends to ``left`` keys behind, its own key, and ``right`` keys ahead.

    Hugging Face's ``sliding_window=w`` is ``window(w - 1, 0)``; Longformer's
    ``attention_window=w`` is ``window(w // 2, w // 2)``. A window longer than the sequence is full
    attention.

    Args:
        left: how many keys behind its own a query sees, at least 0.
        right: how many keys ahead of its own a query sees, at least 0.

    Raises:
        BadType, BadValue: if a side is no integer, negative, or above 2^31 - 1.

    Source: Beltagy et al. 2020 (Longformer), section 3.1.

    Example:
        >>> print(window(2, 1).draw(4))
        ■ ■ · ·
        ■ ■ ■ ·
        ■ ■ ■ ■
        · ■ ■ ■
    """
    diagonal = Text("use window(0, 0) for the diagonal")
    sides = (("left", left), ("right", right))
    return Window(*(check_integer("window", side, count, 0, diagonal) for side, count in sides))


@dataclass(frozen=True, repr=False)
class Dilated(Mask):
    """The mask of `dilated`."""

    left: int
    right: int
    step: int
    by_distance = True

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return self._reach.rule(b, h, q, k) & ((q - k) % self.step == 0)

    def tile(self, q: range, k: range) -> Tile:
        if self._reach.tile(q, k) is Tile.EMPTY:
            return Tile.EMPTY
        nearest, furthest = q[0] - k[-1], q[-1] - k[0]
        if nearest // self.step == furthest // self.step and nearest % self.step:
            return Tile.EMPTY  # no multiple of the step lies between the two distances
        return Tile.FULL if self.step == 1 and self._reach.tile(q, k) is Tile.FULL else Tile.MIXED

    @property
    def name(self) -> str:
        return f"dilated({self.left}, {self.right}, step={self.step})"

    @property
    def _reach(self) -> Window:
        return Window(self.left * self.step, self.right * self.step)


def dilated(left: int, right: int, *, step: int) -> Mask:
    """Every ``step``-th key: ``left`` of them behind, the own key, ``right`` of them ahead.

    Args:
        left: how many keys behind a query sees, at least 0.
        right: how many keys ahead a query sees, at least 0.
        step: the distance between two of them, at least 1; 1 is ``window(left, right)``.

    Raises:
        BadType, BadValue: if an argument is no integer, too small, or above 2^31 - 1.

    Source: Beltagy et al. 2020 (Longformer), section 3.1, dilated sliding window.

    Example:
        >>> print(dilated(1, 1, step=2).draw(4))
        ■ · ■ ·
        · ■ · ■
        ■ · ■ ·
        · ■ · ■
    """
    left = check_integer("dilated", "left", left, 0, Text("0 sees nothing there"))
    right = check_integer("dilated", "right", right, 0, Text("0 sees nothing there"))
    step = check_integer("dilated", "step", step, 1, Text("1 is a plain window"))
    return Dilated(left, right, step)
