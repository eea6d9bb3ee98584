"""What a written-out calculation of printed numbers gives, and how far rounding may carry it."""

import math

from headwise.check.nodes import Apply, Grid, Node, Product, Quotient, Sum
from headwise.check.numbers import NOISE, Printed

ROUNDED = 0.005
"""A printed number with a step below this is taken as rounded; 0.5 or 0.25 as exact."""

Value = tuple[float, float]
"""A value, and how far the true one may be from it."""


def consistent(node: Node, result: Printed) -> bool:
    """Whether a printed result agrees with the calculation it is said to come from.

    Either the printed numbers give it exactly, or they do within their own rounding.
    """
    found = value(node)
    if found is None or not math.isfinite(result.value):
        return False
    exact, slack = found
    if result.right(exact):
        return True
    return abs(exact - result.value) <= slack + result.step / 2 + NOISE * max(1.0, abs(exact))


def value(node: Node) -> Value | None:
    """The value of an expression of numbers; None where it holds arrays or overflows."""
    try:
        found = _value(node)
    except (OverflowError, ZeroDivisionError, ValueError):
        return None
    return found if found is not None and math.isfinite(found[0]) else None


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
