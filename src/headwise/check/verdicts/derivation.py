"""Derivations: the target of each number in an expression whose value is known."""

import math
from collections.abc import Iterator
from dataclasses import replace

from headwise.check.expression_tree import Apply, Grid, Node, Printed, Product, Quotient, Sum
from headwise.check.verdicts.targets import Quantities, Target, Value, off
from headwise.explain.trace import KEYS
from headwise.lang import Text

Part = tuple[Grid, Target]

FACTOR = Text("as used in the sum")
ARGUMENT = Text("as given to the function")
_EXP = Text("exp of the scaled score")


def entries(grid: Grid, target: Target) -> Iterator[tuple[Printed, float, float, tuple[int, int]]]:
    """The printed numbers of a grid: number, exact value, its error bound, and (row, column)."""
    for i, (row, values) in enumerate(zip(grid.rows, target.values, strict=True)):
        for j, (cell, exact) in enumerate(zip(row, values, strict=True)):
            if cell is not None:
                yield cell, exact, target.off(i, j), (i, j)


def wrong(grid: Grid, target: Target) -> int:
    """How many numbers of a grid are wrong for a target; 0 where the shapes differ."""
    if not fits(grid, target):
        return 0
    return sum(not cell.right(exact, slack) for cell, exact, slack, _ in entries(grid, target))


def fits(grid: Grid, target: Target) -> bool:
    """Whether a grid and a target have the same shape."""
    return grid.dims == target.dims and [*map(len, grid.rows)] == [*map(len, target.values)]


def parts(node: Node, target: Target, known: Quantities) -> list[Part]:
    """Each printed array in an expression with its target; [] where that is unclear."""
    if isinstance(node, Grid):
        return [(node, target)] if fits(node, target) else []
    if isinstance(node, Apply):
        return (_joined if node.name == "concat" else _softmax)(node, target, known)
    if isinstance(node, Quotient):
        return _quotient(node, target, known)
    if isinstance(node, Sum):
        return _sum(node.terms, target, known)
    if not isinstance(node, Product):
        return []
    if target.key == "term" and target.row is not None and target.column is not None:
        a = known.part(("softmax", target.head), target.row, target.column, FACTOR)
        b = known.part(("v", target.head), target.column, role=FACTOR)
        return _two_factors(node, a, b, known)
    scaled = _times_scale(node, target, known)
    return scaled or _matrices(node, target, known) or _sum(((1, node),), target, known)


def _same_part(key: str, target: Target, known: Quantities, role: Text | None) -> Target | None:
    """The same row, entry or matrix of another quantity of the head."""
    place = (key, target.head)
    if place not in known.tables or (target.row is None and target.column is not None):
        return None
    turned = target.turned and target.row is None
    return known.part(place, target.row, target.column, role, turned=turned)


def _softmax(node: Apply, target: Target, known: Quantities) -> list[Part]:
    if node.name != "softmax" or target.key != "softmax" or len(node.args) != 1:
        return []
    arguments = [_same_part(key, target, known, ARGUMENT) for key in ("masked", "scaled")]
    return best([parts(node.args[0], a, known) for a in arguments if a is not None])


def _joined(node: Apply, target: Target, known: Quantities) -> list[Part]:
    if target.key != "concat" or len(node.args) != known.heads:
        return []
    result: list[Part] = []
    for head, node_of_head in enumerate(node.args, start=1):
        part = _same_part("head", replace(target, head=head), known, FACTOR)
        result += parts(node_of_head, part, known) if part is not None else []
    return result


def _quotient(node: Quotient, target: Target, known: Quantities) -> list[Part]:
    if target.key == "softmax" and target.row is not None:
        return _exponentials(node, target, target.row, known)
    if target.key not in ("scaled", "masked"):
        return []
    score = _same_part("score", target, known, FACTOR)
    return [] if score is None else parts(node.above, score, known) + _root(node.below, known)


def _root(node: Node, known: Quantities) -> list[Part]:
    """The divisor of the scaled scores: √d_k, as √2 or as 1.414."""
    root = 1 / known.scale if known.scale else math.inf
    if isinstance(node, Apply) and node.name == "sqrt" and len(node.args) == 1:
        root, node = root * root, node.args[0]
    if not isinstance(node, Grid) or node.dims != 0:
        return []
    label = Text("square root of the head dim")
    return [(node, Target("scaled", None, None, None, [[root]], 0, label=label))]


def _times_scale(node: Product, target: Target, known: Quantities) -> list[Part]:
    """``0.707 × [1.46, 1.71]``: a score times the scale."""
    score = _same_part("score", target, known, FACTOR) if target.key == "scaled" else None
    if score is None:
        return []
    scale = Target("scaled", None, None, None, [[known.scale]], 0, label=Text("scale"))
    return _two_factors(node, scale, score, known)


def _exponentials(node: Quotient, target: Target, i: int, known: Quantities) -> list[Part]:
    """``e^a / (e^a + e^b)``, or the same with the powers worked out."""
    terms = node.below.terms if isinstance(node.below, Sum) else ()
    key = ("masked" if ("masked", target.head) in known.tables else "scaled", target.head)
    if key not in known.tables:
        return []
    row, whole = known.tables[key][i], known.part(key, i)
    exact = [math.exp(value) for value in row]
    slack = [value * math.expm1(whole.off(0, j)) for j, value in enumerate(exact)]
    shown = [j for j, score in enumerate(row) if score > -math.inf or len(terms) == len(row)]
    result: list[Part] = []
    for j, (_, term) in zip(shown, terms, strict=True) if len(terms) == len(shown) else ():
        result += _power(term, known.part(key, i, j, ARGUMENT), (exact[j], slack[j]), known)
    if isinstance(node.below, Grid):
        result += _derived(node.below, target, (sum(exact), sum(slack)), Text("sum of exp"))
    if target.column is not None:
        cell = known.part(key, i, target.column, ARGUMENT)
        result += _power(node.above, cell, (exact[target.column], slack[target.column]), known)
    elif isinstance(node.above, Grid) and node.above.dims == 1:
        values = replace(target, values=[exact], role=None, label=_EXP, slack=[slack])
        result += parts(node.above, values, known)
    return result


def _power(node: Node, cell: Target, exact: Value, known: Quantities) -> list[Part]:
    if isinstance(node, Apply) and node.name == "exp" and len(node.args) == 1:
        return parts(node.args[0], cell, known)
    return _derived(node, cell, exact, _EXP) if isinstance(node, Grid) else []


def _derived(grid: Grid, target: Target, exact: Value, label: Text) -> list[Part]:
    if grid.dims != 0:
        return []
    values, slack = [[exact[0]]], [[exact[1]]]
    return [(grid, replace(target, values=values, dims=0, role=None, label=label, slack=slack))]


def _matrices(node: Product, target: Target, known: Quantities) -> list[Part]:
    """Arrays side by side: a row times a row is a score, a matrix times a matrix a product."""
    places = known.factors(target)
    if places is None or len(node.factors) != 2 or target.turned:
        return []
    left, right = node.factors
    if not isinstance(left, Grid) or not isinstance(right, Grid) or 0 in (left.dims, right.dims):
        return []
    first, second = places
    dot = target.key == "score"
    a = known.part(first, target.row, role=FACTOR)
    if target.column is not None:
        row, column = (target.column, None) if dot else (None, target.column)
        return parts(left, a, known) + parts(right, known.part(second, row, column, FACTOR), known)
    orders = (True, False) if dot else (False,)
    seconds = [known.part(second, role=FACTOR, turned=turned) for turned in orders]
    return best([parts(left, a, known) + parts(right, b, known) for b in seconds])


def best(result: list[list[Part]]) -> list[Part]:
    """The reading that explains most numbers, with the fewest wrong among them."""

    def cost(reading: list[Part]) -> tuple[int, int]:
        cells = sum(len(grid.cells) for grid, _ in reading)
        return -cells, sum(wrong(grid, target) for grid, target in reading)

    return min(result, key=cost, default=[])


def _sum(terms: tuple[tuple[int, Node], ...], target: Target, known: Quantities) -> list[Part]:
    """Σ left[i, n] · right[n, j], term by term; terms that are 0 may be left out."""
    places = known.factors(target)
    if places is None or target.row is None:
        return []
    left = known.tables[places[0]][target.row]
    inner = [n for n, value in enumerate(left) if value != 0 or len(terms) == len(left)]
    if len(terms) != len(inner):
        return []
    result: list[Part] = []
    for n, (sign, term) in zip(inner, terms, strict=True):
        a = known.part(places[0], target.row, n, FACTOR)
        row, column = (target.column, n) if target.key == "score" else (n, target.column)
        b = known.part(places[1], row, column, FACTOR)
        result += _term(term, sign, (a, b), target, known)
    return result


def _term(
    term: Node, sign: int, factors: tuple[Target, Target], target: Target, known: Quantities
) -> list[Part]:
    a, b = factors
    if isinstance(term, Product):
        return _two_factors(term, a, b, known, sign)
    if not isinstance(term, Grid):
        return []
    factor = sign * a.values[0][0]
    values = [[factor * value for value in b.values[0]]]
    label = Text("term {n} of the sum for {what}", n=a.column, what=KEYS[target.key][0])
    slack = [[off(a, b, n) for n in range(len(values[0]))]] if b.slack or a.slack else []
    return parts(term, replace(b, values=values, role=None, label=label, slack=slack), known)


def _two_factors(
    node: Product, a: Target, b: Target, known: Quantities, sign: int = 1
) -> list[Part]:
    """A product of two factors in either order; one of them may have the sign."""
    if len(node.factors) != 2:
        return []
    targets = [(a, b)] if sign > 0 else [(_negative(a), b), (a, _negative(b))]
    orders = (node.factors, node.factors[::-1])
    return best([parts(x, p, known) + parts(y, q, known) for x, y in orders for p, q in targets])


def _negative(target: Target) -> Target:
    return replace(target, values=[[-v for v in row] for row in target.values])
