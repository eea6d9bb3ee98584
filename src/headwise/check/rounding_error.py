"""Rounding error: of the quantities when inputs are printed rounded, and of printed arithmetic.

Articles print the input and the weights rounded and compute with unrounded numbers. A matrix counts
as rounded when at least `MOST_EXACT` + 1 decimals are printed and most entries use the last of
them; 0.5 and 1.25 count as exact.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from headwise.check.expression_tree import NOISE, Apply, Grid, Node, Printed, Product, Quotient, Sum
from headwise.explain.trace import Projections, Trace

ROUNDED = 0.005
"""A printed number with a smaller step counts as rounded; 0.5 and 0.25 count as exact."""

Value = tuple[float, float]
"""A value and the bound of its rounding error."""


def consistent(node: Node, result: Printed) -> bool:
    """Whether a printed result is the value of an expression, up to the rounding of its numbers."""
    computed = value(node)
    if computed is None or not math.isfinite(result.value):
        return False
    exact, slack = computed
    if result.right(exact):
        return True
    return abs(exact - result.value) <= slack + result.step / 2 + NOISE * max(1.0, abs(exact))


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
        terms = [(sign, _value(term)) for sign, term in node.terms]
        known = [(sign, term) for sign, term in terms if term is not None]
        if len(known) < len(terms):
            return None
        return sum(sign * t[0] for sign, t in known), sum(t[1] for _, t in known)
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


MOST_EXACT = 2
"""With at most this many decimals a given number counts as exact."""

DRAWS, SAFETY = 24, 1.5
"""The number of random shifts of the inputs by half a printed step, and the factor on the largest
change."""

Rows = list[list[float]]

_PARTS = ("q", "k", "v", "out", "q_bias", "k_bias", "v_bias", "out_bias")


def rounded(grid: Grid) -> bool:
    """Whether a matrix is printed with rounded numbers.

    Example:
        >>> from headwise.check.expression_tree import vector
        >>> from headwise.check.expression_tree import printed
        >>> [rounded(vector((printed(text, 1, 0),))) for text in ("0.25", "0.3713")]
        [False, True]
    """
    cells = grid.cells
    fine = [c for c in cells if 0 < c.step < 10.0**-MOST_EXACT * 0.99]
    used = [c for c in fine if c.text.rstrip("%\\ ")[-1:] not in ("0", ".")]
    return 2 * len(used) > len(cells)


def upper(grid: Grid) -> Rows:
    """The values of a whole grid, each half a step up where the grid is rounded."""
    if not rounded(grid):
        return grid.values
    return [[cell.value + cell.step / 2 for cell in row if cell is not None] for row in grid.rows]


def quantity_errors(
    run: Callable[[Tensor, Projections], Trace],
    low: tuple[Tensor, Projections],
    high: tuple[Tensor, Projections],
) -> dict[tuple[str, int | None], Rows]:
    """The rounding error of each quantity; {} where the inputs are exact.

    Args:
        run: the computation.
        low: the input and the projections as printed.
        high: the same, each entry half a step up where it may be rounded.
    """
    if _same(low, high):
        return {}
    exact = run(*low)
    errors = [torch.zeros_like(quantity.values) for quantity in exact.quantities]
    generator = torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        moved = run(*_moved(low, high, generator))
        for at, (a, b) in enumerate(zip(exact.quantities, moved.quantities, strict=True)):
            off = torch.where(a.values == b.values, 0.0, (a.values - b.values).abs())
            errors[at] = torch.maximum(errors[at], off)
    return {
        (quantity.key, quantity.head): (SAFETY * most).tolist()
        for quantity, most in zip(exact.quantities, errors, strict=True)
    }


def _same(low: tuple[Tensor, Projections], high: tuple[Tensor, Projections]) -> bool:
    return all(
        a is b or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(_tensors(low), _tensors(high), strict=True)
    )


def _tensors(given: tuple[Tensor, Projections]) -> list[Tensor | None]:
    return [given[0], *(getattr(given[1], name) for name in _PARTS)]


def _moved(
    low: tuple[Tensor, Projections], high: tuple[Tensor, Projections], generator: torch.Generator
) -> tuple[Tensor, Projections]:
    """Each entry half a step up or down."""

    def one(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        if a is None or b is None:
            return a
        sign = torch.randint(2, a.shape, generator=generator).double() * 2 - 1
        return a.double() + sign * (b.double() - a.double())

    x, *weights = map(one, _tensors(low), _tensors(high))
    q, k, v, out, *biases = weights
    if x is None or q is None or k is None or v is None or out is None:
        return low
    return x, Projections(q, k, v, out, *biases)
