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
    """Let each query attend to its own position and to earlier positions.

    The last query is aligned with the last key (lower-right alignment), as with a cache. If there
    are more queries than keys, the first queries have no key and are fully masked.

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
    """Let every query attend to every key, as in an encoder.

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
    """Let each query attend to ``left`` keys behind, its own key, and ``right`` keys ahead.

    Hugging Face's ``sliding_window=w`` is ``window(w - 1, 0)``; Longformer's ``attention_window=w``
    is ``window(w // 2, w // 2)``. If a window is longer than the sequence, the mask is full.

    Args:
        left: the number of keys before the query's own position, at least 0.
        right: the number of keys after the query's own position, at least 0.

    Raises:
        BadType, BadValue: if a side is not an integer, is negative, or above 2^31 - 1.

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
    """Let each query attend to every ``step``-th key: ``left`` behind, its own, ``right`` ahead.

    Args:
        left: the number of keys before the query's own position, at least 0.
        right: the number of keys after the query's own position, at least 0.
        step: the distance between two neighbouring keys, at least 1; 1 is ``window(left, right)``.

    Raises:
        BadType, BadValue: if an argument is not an integer, is too small, or above 2^31 - 1.

    Source: Beltagy et al. 2020 (Longformer), section 3.1, dilated sliding window.

    Example:
        >>> print(dilated(1, 1, step=2).draw(4))
        ■ · ■ ·
        · ■ · ■
        ■ · ■ ·
        · ■ · ■
    """
    left = check_integer("dilated", "left", left, 0, Text("0 allows no key behind"))
    right = check_integer("dilated", "right", right, 0, Text("0 allows no key ahead"))
    step = check_integer("dilated", "step", step, 1, Text("1 gives an ordinary window"))
    return Dilated(left, right, step)
