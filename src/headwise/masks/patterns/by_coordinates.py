"""Masks that depend on the chunk of a position, or on its row and column in a grid."""

from dataclasses import dataclass

from headwise.lang import Text
from headwise.masks.mask import Mask, Tile, multiples
from headwise.shapes import Index, Truth, check_integer


@dataclass(frozen=True, repr=False)
class Chunked(Mask):
    """The mask of `chunked`."""

    size: int

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return q // self.size == k // self.size

    def tile(self, q: range, k: range) -> Tile:
        first, last = q[0] // self.size, q[-1] // self.size
        if k[-1] // self.size < first or k[0] // self.size > last:
            return Tile.EMPTY
        one = first == last == k[0] // self.size == k[-1] // self.size
        return Tile.FULL if one else Tile.MIXED

    def tile_boundaries(self, stop: int, start: int = 0) -> frozenset[int]:
        return multiples(self.size, start, stop)

    @property
    def name(self) -> str:
        return f"chunked({self.size})"


def chunked(size: int) -> Mask:
    """Each query attends to the keys of its own chunk of ``size`` positions, counted from 0.

    Llama 4's local layers use ``causal() & chunked(8192)``. Unlike with a window, the first query
    of a chunk does not attend to any earlier key.

    Args:
        size: the number of positions in a chunk, at least 1.

    Raises:
        BadType, BadValue: if the size is not an integer, below 1, or above 2^31 - 1.

    Source: Meta 2025 (Llama 4), ``attention_chunk_size``; Dai et al. 2019 (Transformer-XL), section
        3.1, the vanilla model of separate segments.

    Example:
        >>> print(chunked(2).draw(5))
        ■ ■ · · ·
        ■ ■ · · ·
        · · ■ ■ ·
        · · ■ ■ ·
        · · · · ■
    """
    return Chunked(check_integer("chunked", "size", size, 1, Text("Llama 4 uses 8192")))


@dataclass(frozen=True, repr=False)
class Window2d(Mask):
    """The mask of `window2d`."""

    vertical: int
    horizontal: int
    width: int

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        rows, columns = q // self.width - k // self.width, q % self.width - k % self.width
        return (rows.abs() <= self.vertical) & (columns.abs() <= self.horizontal)

    def tile(self, q: range, k: range) -> Tile:
        rows = _distances(self._rows(q), self._rows(k))
        columns = _distances(self._columns(q), self._columns(k))
        if rows[0] > self.vertical or columns[0] > self.horizontal:
            return Tile.EMPTY
        full = rows[1] <= self.vertical and columns[1] <= self.horizontal
        return Tile.FULL if full else Tile.MIXED

    def tile_boundaries(self, stop: int, start: int = 0) -> frozenset[int]:
        return multiples(self.width, start, stop)

    def _rows(self, positions: range) -> tuple[int, int]:
        return positions[0] // self.width, positions[-1] // self.width

    def _columns(self, positions: range) -> tuple[int, int]:
        """Return the first and last column of positions; all columns if they span two rows."""
        first, last = self._rows(positions)
        if first != last:
            return 0, self.width - 1
        return positions[0] % self.width, positions[-1] % self.width

    @property
    def name(self) -> str:
        return f"window2d({self.vertical}, {self.horizontal}, width={self.width})"


def _distances(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return the minimum and the maximum distance between elements of two intervals."""
    least = max(0, other[0] - one[1], one[0] - other[1])
    return least, max(other[1] - one[0], one[1] - other[0])


def window2d(vertical: int, horizontal: int, *, width: int) -> Mask:
    """Each query attends to its neighbourhood in a grid whose tokens are ordered row by row.

    The index of the key at row r and column c is ``r * width + c``. A neighbourhood of 7 x 7 is
    ``window2d(3, 3, width=...)``. At an edge, the neighbourhood is cut off, whereas NATTEN moves it
    inwards.

    Args:
        vertical: the number of visible rows above and below the row of the query, at least 0.
        horizontal: the number of visible columns to the left and right of the query, at least 0.
        width: the number of columns of the grid, at least 1; the number of rows is arbitrary.

    Raises:
        BadType, BadValue: if an argument is not an integer, too small, or above 2^31 - 1.

    Source: Ramachandran et al. 2019 (Stand-Alone Self-Attention), section 3; Hassani et al. 2023
        (Neighborhood Attention Transformer), section 3.1, except at the edges.

    Example:
        >>> print(window2d(1, 0, width=3).draw(6))
        ■ · · ■ · ·
        · ■ · · ■ ·
        · · ■ · · ■
        ■ · · ■ · ·
        · ■ · · ■ ·
        · · ■ · · ■
    """
    own = Text("0 means only the query's row or column")
    vertical = check_integer("window2d", "vertical", vertical, 0, own)
    horizontal = check_integer("window2d", "horizontal", horizontal, 0, own)
    width = check_integer("window2d", "width", width, 1, Text("the columns of the grid"))
    return Window2d(vertical, horizontal, width)
