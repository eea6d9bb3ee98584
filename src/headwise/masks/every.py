"""Keys at distances that are multiples of a number."""

from dataclasses import dataclass

from headwise.lang import Text
from headwise.masks.base import Mask, Tile
from headwise.masks.checks import whole
from headwise.shapes import Index, Truth


@dataclass(frozen=True, repr=False)
class Every(Mask):
    """The mask of `every`."""

    step: int

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del b, h
        return (q - k) % self.step == 0

    def tile(self, q: range, k: range) -> Tile:
        if self.step == 1:
            return Tile.FULL
        nearest, furthest = q[0] - k[-1], q[-1] - k[0]
        between = nearest // self.step == furthest // self.step and nearest % self.step
        if between:
            return Tile.EMPTY  # no multiple of the step lies between the two distances
        return Tile.FULL if nearest == furthest else Tile.MIXED

    @property
    def name(self) -> str:
        return f"every({self.step})"

    @property
    def by_distance(self) -> bool:
        return True


def every(step: int) -> Mask:
    """Keys whose distance to the query, behind or ahead, is a multiple of ``step``.

    Raises:
        BadType, BadValue: if it is no integer, below 1 or above 2^31 - 1.

    Example:
        >>> print(every(2).draw(4))
        ■ · ■ ·
        · ■ · ■
        ■ · ■ ·
        · ■ · ■
    """
    whole("every", "step", step, 1, Text("1 is full attention"))
    return Every(step)
