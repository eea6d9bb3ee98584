"""Each query attends to its neighbours."""

from dataclasses import dataclass

from headwise.lang import Text
from headwise.masks.base import Mask, Tile
from headwise.masks.checks import whole
from headwise.shapes import Index, Truth

_DIAGONAL = Text("use window(0, 0) for the diagonal")


@dataclass(frozen=True, repr=False)
class Window(Mask):
    """The mask of `window`."""

    left: int
    right: int

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del b, h
        return (k >= q - self.left) & (k <= q + self.right)

    def tile(self, q: range, k: range) -> Tile:
        if k[-1] < q[0] - self.left or k[0] > q[-1] + self.right:
            return Tile.EMPTY
        inside = k[0] >= q[-1] - self.left and k[-1] <= q[0] + self.right
        return Tile.FULL if inside else Tile.MIXED

    @property
    def name(self) -> str:
        return f"window({self.left}, {self.right})"

    @property
    def by_distance(self) -> bool:
        return True


def window(left: int, right: int) -> Mask:
    """Each query attends to ``left`` keys behind, its own key, and ``right`` keys ahead.

    Hugging Face's ``sliding_window=w`` is ``window(w - 1, 0)``; Longformer's
    ``attention_window=w`` is ``window(w // 2, w // 2)``. A window longer than the sequence is full
    attention.

    Args:
        left: how many keys behind its own a query sees, at least 0.
        right: how many keys ahead of its own a query sees, at least 0.

    Raises:
        BadType: if a side is no integer.
        BadValue: if a side is negative or above 2^31 - 1, which is longer than any sequence.

    Source: Beltagy et al. 2020 (Longformer), section 3.1.

    Example:
        >>> print(window(2, 1).draw(5))
        ■ ■ · · ·
        ■ ■ ■ · ·
        ■ ■ ■ ■ ·
        · ■ ■ ■ ■
        · · ■ ■ ■
    """
    for side, reach in (("left", left), ("right", right)):
        whole("window", side, reach, 0, _DIAGONAL)
    return Window(left, right)
