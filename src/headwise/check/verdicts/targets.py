"""What a printed array may stand for, and how far rounding may move its numbers."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.check.expression_tree import Apply, Grid, Node, Printed, Product, Quotient, Sum
from headwise.check.settings.attention_steps import Place, Tables
from headwise.explain.trace import KEYS
from headwise.lang import Text, joined, same

ROUNDED = 0.005
"""A printed number with a smaller step counts as rounded; 0.5 and 0.25 count as exact."""

Value = tuple[float, float]  # a value and the bound of its rounding error


def consistent(node: Node, result: Printed) -> bool:
    """Whether a printed result is the value of an expression, up to the rounding of its numbers."""
    computed = value(node)
    return computed is not None and math.isfinite(result.value) and result.right(*computed)


def value(node: Node) -> Value | None:
    """The value of an expression of numbers; None for arrays and on overflow."""
    try:
        result = _value(node)
    except (OverflowError, ZeroDivisionError, ValueError):
        return None
    return result if result is not None and math.isfinite(result[0]) else None


def _value(node: Node) -> Value | None:
    if isinstance(node, Grid):
        cell = node.rows[0][0] if node.dims == 0 else None
        return None if cell is None else (cell.value, cell.step / 2 * (cell.step < ROUNDED))
    if isinstance(node, Sum):
        whole, slack = 0.0, 0.0
        for sign, part in node.terms:
            if (term := _value(part)) is None:
                return None
            whole, slack = whole + sign * term[0], slack + term[1]
        return whole, slack
    if isinstance(node, Product):
        return _product([_value(factor) for factor in node.factors])
    if isinstance(node, Quotient):
        above, below = _value(node.above), _value(node.below)
        if above is None or below is None:
            return None
        slack = (above[1] + abs(above[0] / below[0]) * below[1]) / abs(below[0])
        return above[0] / below[0], slack
    return _apply(node) if isinstance(node, Apply) and len(node.args) == 1 else None


def _product(factors: list[Value | None]) -> Value | None:
    whole: Value = (1.0, 0.0)
    for factor in factors:
        if factor is None:
            return None
        (a, da), (b, db) = whole, factor
        whole = (a * b, abs(a) * db + abs(b) * da + da * db)
    return whole


def _apply(node: Apply) -> Value | None:
    inside = _value(node.args[0])
    if inside is None:
        return None
    if node.name == "exp":
        raised = math.exp(inside[0])
        return raised, raised * math.expm1(inside[1])
    if node.name == "sqrt":
        root = math.sqrt(inside[0])
        return root, inside[1] / (2 * root) if root else inside[1]
    return None


MOST_EXACT = 2  # with at most this many decimals an input counts as exact

DRAWS, SAFETY = 24, 1.5
"""The number of random shifts of the inputs by half a printed step, and the factor on the largest
change."""

Rows = list[list[float]]


def rounded(grid: Grid) -> bool:
    """Whether a matrix is printed with rounded numbers.

    Example:
        >>> from headwise.check.expression_tree import printed, vector
        >>> [rounded(vector((printed(text, 1, 0),))) for text in ("0.25", "0.3713")]
        [False, True]
    """
    cells = grid.cells
    fine = [c for c in cells if 0 < c.step < 10.0**-MOST_EXACT * 0.99]
    used = [c for c in fine if c.text.rstrip("%\\ ")[-1:] not in ("0", ".")]
    long = [c for c in used if c.step < 10.0 ** -(MOST_EXACT + 1) * 0.99]
    return 2 * len(used) > len(cells) or (len(long) >= 2 and 4 * len(long) >= len(cells))


def upper(grid: Grid) -> Rows:
    """The values of a whole grid, each half a step up where the grid is rounded."""
    if not rounded(grid):
        return grid.values
    step = min(cell.step for cell in grid.cells if cell.step)
    return [[cell.value + step / 2 for cell in row if cell is not None] for row in grid.rows]


def quantity_errors(
    run: Callable[[Tables], Tables], low: Tables, high: Tables | None
) -> dict[Place, Rows]:
    """The rounding error of each quantity; {} where the inputs are exact.

    ``run`` is the computation, ``low`` its inputs as printed, and ``high`` the same with rounded
    entries half a step up; None where none is rounded.
    """
    if high is None:
        return {}
    exact = run(low)
    errors = {place: torch.zeros_like(table) for place, table in exact.items()}
    generator = torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        moved = run({place: _moved(a, high[place], generator) for place, a in low.items()})
        for place, table in exact.items():
            other = moved[place]
            change = torch.where(table == other, 0.0, (table - other).abs())
            errors[place] = torch.maximum(errors[place], change.nan_to_num(0.0))
    return {place: (SAFETY * most).tolist() for place, most in errors.items()}


def _moved(low: Tensor, high: Tensor, generator: torch.Generator) -> Tensor:
    """Each entry half a step up or down."""
    sign = torch.randint(2, low.shape, generator=generator).double() * 2 - 1
    return low + sign * (high - low)


WEIGHTS = {"W_q": "W^Q", "W_k": "W^K", "W_v": "W^V", "W_out": "W^O"}

EXPONENTS = {
    "shifted": (Text("scores minus the row maximum"), ""),
    "exp": (Text("exp of the scores"), ""),
    "exp_shifted": (Text("exp of the scores minus the row maximum"), ""),
}
"""Quantities between the scores and their softmax, with names as in `KEYS`."""

FACTORS = {
    "score": ("q", "k"), "head": ("softmax", "v"), "q": ("x", "W_q"), "k": ("x", "W_k"),
    "v": ("x", "W_v"), "Q": ("x", "W_q"), "K": ("x", "W_k"), "V": ("x", "W_v"),
    "output": ("concat", "W_out"),
}  # fmt: skip
"""The two matrices whose product a quantity is; for scores the second is taken transposed."""

_TERM, _SHARED = Text("weight times value"), ("x", "concat", "W_out")


@dataclass(frozen=True, eq=False)
class Target:
    """A matrix of the computation, or a row, a column or an entry of it, counted from 0.

    Attributes:
        values: the exact numbers, shaped as a grid's rows.
        turned: whether it is transposed.
        role: in what it is used, or None where it is stated by itself.
        label: its name where it is none of the trace's quantities.
        slack: the error bound of each value, as the input is printed rounded; empty for 0.
    """

    key: str
    head: int | None
    row: int | None
    column: int | None
    values: Rows
    dims: int
    turned: bool = False
    role: Text | None = None
    label: Text | None = None
    slack: Rows = field(default_factory=list)

    def off(self, i: int, j: int) -> float:
        """The slack of the value at (i, j)."""
        return self.slack[i][j] if self.slack else 0.0

    def place(self, i: int, j: int) -> tuple[int, int]:
        """The row and the column of the matrix that the printed number at (i, j) stands for."""
        i, j = (j, i) if self.turned and self.dims == 2 else (i, j)
        if self.dims == 1 and self.row is None and self.column is not None:
            i = j
        return (
            self.row if self.row is not None else i,
            self.column if self.column is not None else j,
        )

    @property
    def quantity(self) -> Text:
        """The name of the matrix: "softmax"."""
        names = KEYS | EXPONENTS
        return self.label or (names[self.key][0] if self.key in names else same(WEIGHTS[self.key]))

    def name(self, i: int, j: int, base: int = 0) -> Text:
        """What the number at (i, j) of the printed array is: "head 1, softmax, row 0, column 2".

        Rows and columns are counted from ``base``.
        """
        row, column = self.place(i, j)
        parts = [] if self.head is None else [Text("head {head}", head=self.head)]
        parts += [
            self.quantity,
            Text("row {row}", row=row + base),
            Text("column {column}", column=column + base),
        ]
        if self.role is not None:
            parts.append(self.role)
        return joined(Text(", "), parts)


def off(a: Target, b: Target, n: int) -> float:
    """How far the product of an entry and the n-th value of a row may be off."""
    x, y = a.values[0][0], b.values[0][n]
    return abs(x) * b.off(0, n) + abs(y) * a.off(0, 0) + a.off(0, 0) * b.off(0, n)


class Quantities:
    """Every matrix of one computation, as plain lists."""

    def __init__(
        self, tables: Tables, heads: int, scale: float, slack: dict[Place, Rows] | None = None
    ) -> None:
        self.slack = slack or {}
        self.heads, self.scale = heads, scale
        self.tables: dict[Place, Rows] = {
            place: table.tolist() for place, table in tables.items() if table.numel()
        }

    def part(
        self,
        place: Place,
        row: int | None = None,
        column: int | None = None,
        role: Text | None = None,
        *,
        turned: bool = False,
    ) -> Target:
        """A matrix, or the row, the column or the entry of it that is named."""
        values = _part(self.tables[place], row, column, turned)
        slack = _part(self.slack[place], row, column, turned) if place in self.slack else []
        dims = (row is None) + (column is None)
        return Target(*place, row, column, values, dims, turned, role, slack=slack)

    def factors(self, target: Target) -> tuple[Place, Place] | None:
        """The two matrices whose product a target is; the keys are taken transposed."""
        names = FACTORS.get(target.key)
        if names is None:
            return None
        places = [(name, None if name in _SHARED else target.head) for name in names]
        if any(place not in self.tables for place in places):
            return None
        return places[0], places[1]

    def terms(self, grid: Grid) -> Iterator[Target]:
        """Each weight times its row of values, where that has the shape of a grid."""
        for head in range(1, self.heads + 1):
            values = self.tables["v", head]
            if grid.shape != (len(values[0]),):
                continue
            for i, weights in enumerate(self.tables["softmax", head]):
                for j, weight in enumerate(weights):
                    row = [weight * value for value in values[j]]
                    a, b = self.part(("softmax", head), i, j), self.part(("v", head), j)
                    slack = [[off(a, b, n) for n in range(len(row))]] if self.slack else []
                    yield Target("term", head, i, j, [row], 1, label=_TERM, slack=slack)

    def fitting(self, grid: Grid, keys: tuple[str, ...], *, columns: bool) -> Iterator[Target]:
        """Every target of a grid's shape; columns and transposes only if ``columns``."""
        shape = grid.shape
        for place, rows in self.tables.items():
            if keys and place[0] not in keys:
                continue
            size = (len(rows), len(rows[0]))
            if grid.dims == 2:
                if shape == size:
                    yield self.part(place)
                if shape == size[::-1] and (columns or size[0] != size[1]):
                    yield self.part(place, turned=True)
            elif grid.dims == 1:
                if shape == size[1:]:
                    yield from (self.part(place, i) for i in range(size[0]))
                if columns and shape == size[:1]:
                    yield from (self.part(place, None, j) for j in range(size[1]))
            else:
                yield from (self.part(place, i, j) for i in range(size[0]) for j in range(size[1]))


def _part(table: Rows, row: int | None, column: int | None, turned: bool) -> Rows:
    rows = table if row is None else [table[row]]
    if column is not None:
        return [[values[column] for values in rows]]
    return [list(values) for values in zip(*rows, strict=True)] if turned else rows
