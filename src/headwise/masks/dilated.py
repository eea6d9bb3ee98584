"""A window with gaps."""

from dataclasses import dataclass

from headwise.lang import Text
from headwise.masks.base import Mask, Tile
from headwise.masks.checks import whole
from headwise.masks.window import Window
from headwise.shapes import Index, Truth


@dataclass(frozen=True, repr=False)
class Dilated(Mask):
    """The mask of `dilated`."""

    left: int
    right: int
    step: int

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
    def by_distance(self) -> bool:
        return True

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
        >>> print(dilated(1, 1, step=2).draw(5))
        ■ · ■ · ·
        · ■ · ■ ·
        ■ · ■ · ■
        · ■ · ■ ·
        · · ■ · ■
    """
    for side, count in (("left", left), ("right", right)):
        whole("dilated", side, count, 0, Text("0 sees nothing there"))
    whole("dilated", "step", step, 1, Text("1 is a plain window"))
    return Dilated(left, right, step)
