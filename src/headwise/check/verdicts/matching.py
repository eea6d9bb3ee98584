"""Match printed arrays to quantities. A clear label decides; values only break ties.

Of the readings that the label allows, one in which every number is correct is preferred, so that no
correct number is reported as wrong. Without a clear reading the array is not matched.
"""

import math
import re
from dataclasses import dataclass

from headwise.check.expression_tree import Apply, BadArticle, Grid, Node, Product, Quotient, Sum
from headwise.check.labels import Hint, IndexBases, IndexRef
from headwise.check.statements import Statement
from headwise.check.verdicts.derivation import Part, entries, fits, parts, wrong
from headwise.check.verdicts.targets import FACTORS, Quantities, Target

ASIDE = 0.35  # the cost of one disagreement with the context, as a share of wrong numbers
PLAIN_SHARE = 0.4  # the largest share of wrong numbers in an array that is matched without a label

MOST_READINGS, MOST_NODES = 100_000, 64
"""The most readings compared for one problem setup, and the most expressions in one equation."""

_DIVISOR = re.compile(
    r"(?:\bby|除以|\bdurch|\bentre|\bprzez|割る|multiply|times)(?:\s(?:the|its|a|each)\b)?[\s$`*(√]{0,6}$",
    re.IGNORECASE,
)
_ROOT = re.compile(
    r"(?:√|\\sqrt|sqrt)[\s({]{0,3}(?:d[\\_{\s]{0,4}k[}\s$)]{0,3}|[0-9]{1,3})[\s$)}`]{0,4}$"
)
"""The end of a label that says that scores are divided by what follows."""
_SIZE = re.compile(r"(?<![A-Za-z])[hHnNEDLT][\s$`*)}]{0,4}$")
_TOTAL = re.compile(r"(?<![A-Za-z])Z[\s$`*)}]{0,4}$")


@dataclass(frozen=True)
class Reading:
    """One interpretation of an equation: its target, and each printed array with its own.

    Of the ``count`` numbers, ``wrong`` are wrong. ``aside`` is how much it disagrees with the
    context, ``rank`` the place of its key among those the label may mean, and ``distance`` how far
    the stated value is from the exact one.
    """

    target: Target
    parts: tuple[Part, ...]
    wrong: int
    count: int
    aside: float
    rank: int
    distance: float

    def cost(self, known: int) -> tuple[float, int, float]:
        """Lower is likelier; of ``known`` numbers, unexplained ones count as half wrong."""
        share = (self.wrong + 0.5 * (known - self.count)) / max(known, 1)
        return share + ASIDE * self.aside, self.rank, self.distance


@dataclass
class MatchContext:
    """The last head and row that were matched, and the readings compared so far."""

    head: int | None = None
    row: int | None = None
    work: float = 0.0


class Matcher:
    """Match statements to the quantities of one computation.

    With ``columns`` the article writes tokens as columns.
    """

    def __init__(
        self,
        quantities: Quantities,
        bases: IndexBases,
        context: MatchContext,
        *,
        columns: bool = False,
    ) -> None:
        self.quantities, self.bases, self.context = quantities, bases, context
        self.columns = columns

    def read(self, statement: Statement) -> Reading | None:
        """The reading of one statement, or None where none is clear."""
        nodes = statement.equation.nodes
        main = _main(nodes)
        if main is None or main.shape == (-1, -1) or len(nodes) > MOST_NODES:
            return None
        label = statement.label
        if main.dims == 0 and (is_divisor(statement) or any(map(_is_root_or_power, nodes))):
            return None
        whole = all(cell.text.removesuffix(".").isdigit() for cell in main.cells)
        # a letter without index labels a size (h, n) or a sum (Z)
        if main.dims == 0 and (_TOTAL.search(label) or (whole and _SIZE.search(label))):
            return None
        keys = self._keys(statement)
        if main.dims == 0 and all(isinstance(node, Grid) for node in nodes):
            blocked = any(cell.value == -math.inf for cell in main.cells)
            if blocked and not {"score", "scaled", "masked"} & set(keys):
                return None
            if not keys and not statement.context_keys:
                return None
        targets = self._candidates(main, statement, keys)
        readings = [self._reading(target, statement, keys, main) for target in targets]
        return self._choose([r for r in readings if r is not None], statement, keys)

    def keep(self, chosen: Reading) -> None:
        """Take a reading's head and row as the context of what follows."""
        self.context.head = chosen.target.head or self.context.head
        if chosen.target.row is not None:
            self.context.row = chosen.target.row

    def _keys(self, statement: Statement) -> tuple[str, ...]:
        """The quantities that the label, or else the form of the expression, allows."""
        own = statement.own
        if own.weight:
            return tuple(f"W_{name}" for name in own.weight)
        form = next((keys for node in statement.equation.nodes if (keys := _form(node))), ())
        shared = tuple(key for key in own.keys if key in form)
        return shared or form or own.keys

    def _candidates(self, main: Grid, statement: Statement, keys: tuple[str, ...]) -> list[Target]:
        self._count(1)
        own = statement.own
        columns = own.transposed or own.column is not None or main.dims == 1 or self.columns
        targets = []
        for target in self.quantities.fitting(main, keys, columns=columns):
            self._count(0.1)
            targets.append(target)
        products = [n.factors for n in statement.equation.nodes if isinstance(n, Product)]
        dims = [sorted(f.dims for f in factors if isinstance(f, Grid)) for factors in products]
        if not keys and [0, 1] in dims:  # a number times a vector: a term of a weighted sum
            targets += self.quantities.terms(main)
        return [target for target in targets if self._allowed(own, target)]

    def _count(self, work: float) -> None:
        self.context.work += work
        if self.context.work > MOST_READINGS:
            raise BadArticle(
                "too many arrays for an input of this size; cut out the worked example"
            )

    def _allowed(self, own: Hint, target: Target) -> bool:
        if own.head is not None and not self._is_head(own.head, target.head):
            return False
        row, column = self._row(own.row), self._row(own.column)
        if target.dims == 1 and own.row is not None and own.column is not None:
            # a head and a row in either order, or a row and a column
            return any(
                target.row == self._row(row_ref) and self._is_head(head_ref, target.head)
                for row_ref, head_ref in ((own.row, own.column), (own.column, own.row))
            )
        if row is not None and target.row != row:
            return False
        if column is not None and target.dims < 2 and target.column not in (column, None):
            return False
        either = self._row(own.either)
        is_place = target.row == either or (target.dims == 0 and target.column == either)
        return own.either is None or is_place or self._is_head(own.either, target.head)

    def _is_head(self, ref: IndexRef, head: int | None) -> bool:
        base = {"ordinal": 1, "bracket": self.bases.bracket}.get(ref.kind, self.bases.head)
        number = ref.number + 1 - base
        return (self.quantities.heads == 1 and number == 1) or head == number

    def _row(self, ref: IndexRef | None) -> int | None:
        if ref is None:
            return None
        base = {"ordinal": 1, "bracket": self.bases.bracket}.get(ref.kind, self.bases.row)
        return ref.number - base

    def _reading(
        self, target: Target, statement: Statement, keys: tuple[str, ...], main: Grid
    ) -> Reading | None:
        self._count(len(statement.equation.nodes) + 0.05 * len(main.cells))
        nodes = statement.equation.nodes
        result = tuple(part for node in nodes for part in parts(node, target, self.quantities))
        if not result:
            return None
        wrong_count = sum(wrong(grid, part) for grid, part in result)
        count = sum(len(grid.cells) for grid, _ in result)
        aside, distance = self._aside(target, statement, keys), _distance(main, target)
        rank = keys.index(target.key) if target.key in keys else 0
        return Reading(target, result, wrong_count, count, aside, rank, distance)

    def _aside(self, target: Target, statement: Statement, keys: tuple[str, ...]) -> float:
        """How much a target disagrees with the text before the statement."""
        cost, own, around = 0.0, statement.own, statement.around
        context = (*statement.context_keys, "term")
        if not keys and statement.context_keys and target.key not in context:
            cost += 1
        if own.head is None and target.head is not None:
            # the index in Q_1 in the line before a matrix is its head
            refs = (hint.head or (hint.either if target.dims == 2 else None) for hint in around)
            ref = next(filter(None, refs), None)
            if ref is not None:
                cost += not self._is_head(ref, target.head)
            elif self.context.head is not None:
                cost += 0.3 * (target.head != self.context.head)
        if own.row is None and own.either is None and target.row is not None:
            row = self._row(next((hint.row for hint in around if hint.row), None))
            if row is not None:
                cost += target.row != row
            elif self.context.row is not None:
                cost += 0.3 * (target.row != self.context.row)
        if target.dims == 2 and target.turned != (own.transposed or self.columns):
            cost += 0.5
        return cost + 0.5 * (target.dims == 1 and target.row is None and own.column is None)

    def _choose(
        self, readings: list[Reading], statement: Statement, keys: tuple[str, ...]
    ) -> Reading | None:
        if not readings:
            return None
        known = max(reading.count for reading in readings)
        alone = known == 1
        least = min(reading.aside for reading in readings)
        near = [r for r in readings if r.aside <= least] if alone else readings
        right = [r for r in near if r.wrong == 0 and r.count == known]
        if right and (not alone or keys or statement.context_keys):
            return min(right, key=lambda r: (r.aside, r.rank, r.distance))
        best = min(near, key=lambda r: r.cost(known))
        if alone:
            return best if keys and self._single(near, best) else None
        if keys:
            return best if best.wrong < best.count or self._single(near, best) else None
        if statement.context_keys and best.aside == 0:
            return best if best.wrong <= 0.5 * best.count else None
        return best if best.wrong <= PLAIN_SHARE * best.count and best.count > 2 else None

    def _single(self, readings: list[Reading], best: Reading) -> bool:
        """Whether the context leaves only one entry of the quantity."""
        least = min(r.aside for r in readings)
        places = {
            (r.target.head, r.target.row, r.target.column)
            for r in readings
            if r.aside <= least and r.target.key == best.target.key
        }
        return len(places) == 1


def _main(nodes: list[Node]) -> Grid | None:
    """The last largest printed array of an equation, or else the argument of softmax."""
    grids = [node for node in nodes if isinstance(node, Grid)]
    if grids:
        return max(reversed(grids), key=lambda grid: (grid.dims, len(grid.cells)))
    for node in nodes:
        if isinstance(node, Apply) and node.name == "softmax" and isinstance(node.args[0], Grid):
            return node.args[0]
    return None


def is_divisor(statement: Statement) -> bool:
    """Whether a number is what the scores are divided by, as in "divided by 1.414"."""
    labels = statement.equation.labels[:1]
    return any(_DIVISOR.search(label) or _ROOT.search(label) for label in labels)


def _is_root_or_power(node: Node) -> bool:
    """Whether an expression is a root or a power, as in √2 = 1.414, which is arithmetic."""
    return isinstance(node, Apply) and node.name in ("sqrt", "exp")


def _form(node: Node) -> tuple[str, ...]:
    """The quantities that the form of an expression suggests."""
    if isinstance(node, Apply):
        return (node.name,) if node.name in ("softmax", "concat") else ()
    if isinstance(node, Quotient):
        below = node.below
        if isinstance(below, Apply) and below.name == "sqrt":
            return ("scaled",)
        powers = isinstance(below, Sum) and all(
            isinstance(term, Apply) and term.name == "exp" for _, term in below.terms
        )
        return ("softmax",) if powers else ()
    vectors = isinstance(node, Product) and all(
        isinstance(factor, Grid) and factor.dims == 1 for factor in node.factors
    )
    return tuple(FACTORS) if vectors else ()


def _distance(grid: Grid, target: Target) -> float:
    if not fits(grid, target):
        return 0.0
    pairs = [(c.value, exact) for c, exact, _, _ in entries(grid, target) if abs(exact) < 1e300]
    total = sum(min(abs(value - exact) / (1 + abs(exact)), 10.0) for value, exact in pairs)
    return total / max(len(grid.cells), 1)
