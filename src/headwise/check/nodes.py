"""What an article's mathematics is read into: printed arrays, and sums and products of them."""

from dataclasses import dataclass

from headwise.check.numbers import Printed

Cell = Printed | None
"""An entry: a printed number, or None where something else stands, as a symbol or dots."""


@dataclass(frozen=True)
class Grid:
    """A printed number (dims 0), vector (1) or matrix (2)."""

    rows: tuple[tuple[Cell, ...], ...]
    dims: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes; (-1, -1) where rows differ in length."""
        wide = {len(row) for row in self.rows}
        if len(wide) != 1:
            return (-1, -1)
        return ((), (len(self.rows[0]),), (len(self.rows), len(self.rows[0])))[self.dims]

    @property
    def cells(self) -> tuple[Printed, ...]:
        """Every printed number in it."""
        return tuple(cell for row in self.rows for cell in row if cell is not None)

    @property
    def whole(self) -> bool:
        """Whether every entry is a number and all rows are of one length."""
        return self.shape != (-1, -1) and all(cell is not None for r in self.rows for cell in r)

    @property
    def values(self) -> list[list[float]]:
        """The numbers; only for a whole grid."""
        return [[cell.value for cell in row if cell is not None] for row in self.rows]


@dataclass(frozen=True)
class Stack:
    """Matrices in one array of three axes: one for each head."""

    grids: tuple[Grid, ...]


@dataclass(frozen=True)
class Sum:
    """Terms with their signs, 1 or -1."""

    terms: tuple[tuple[int, "Node"], ...]


@dataclass(frozen=True)
class Product:
    """Factors side by side or with a sign of multiplication between."""

    factors: tuple["Node", ...]


@dataclass(frozen=True)
class Quotient:
    """A fraction."""

    above: "Node"
    below: "Node"


@dataclass(frozen=True)
class Apply:
    """A function: "softmax", "exp", "sqrt" or "concat"."""

    name: str
    args: tuple["Node", ...]


@dataclass(frozen=True)
class Symbol:
    """A vector by its name, as a factor of a printed number."""

    name: str


Node = Symbol | Grid | Stack | Sum | Product | Quotient | Apply


def scalar(cell: Printed) -> Grid:
    """One number as a grid."""
    return Grid(((cell,),), 0)


def vector(cells: tuple[Cell, ...]) -> Grid:
    """Numbers in a row as a grid."""
    return Grid((cells,), 1)


def leaves(node: Node) -> list[Grid]:
    """Every printed array in an expression, left to right."""
    if isinstance(node, Grid):
        return [node]
    if isinstance(node, Stack):
        return list(node.grids)
    if isinstance(node, Sum):
        parts: tuple[Node, ...] = tuple(term for _, term in node.terms)
    elif isinstance(node, Product):
        parts = node.factors
    elif isinstance(node, Symbol):
        parts = ()
    elif isinstance(node, Quotient):
        parts = (node.above, node.below)
    else:
        parts = node.args
    return [leaf for part in parts for leaf in leaves(part)]
