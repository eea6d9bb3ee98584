"""The matrices that an article gives, one set for each computation in it."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headwise.check.expression_tree import BadArticle, Grid
from headwise.check.labels import read_label
from headwise.check.settings.attention_steps import Place
from headwise.check.statements import Statement

MOST_SETTINGS = 200
"""The most sets of matrices that are read from one article."""

VALUES = {"q": ("q", "Q"), "k": ("k", "K"), "v": ("v", "V")}
_LATER = {"score": ("score", "scaled", "masked"), "softmax": ("softmax",)}
_INPUT = re.compile(r"^[\W_]{0,6}(?:E|Z_?\W?in|X_?\W?in|H_?\W?(?:in|0)|I|T|emb\w*)[\W_]{0,6}$")
_X = re.compile(r"(?<![A-Za-z])X(?![A-Za-z_^'′])")
_SOURCE = re.compile(
    r"(?<![A-Za-z])([QKV])[\s$`&]{0,4}=[\s$`]{0,4}([A-Z][A-Za-z]{0,6}(?:_[\w{}]{1,12})?)[\s*@·×⋅]{0,3}"
    r"(?:\\[a-z]{1,6}\s?)?W(?![a-z])"
)


@dataclass
class Givens:
    """The matrices given for one computation, in force from one statement on.

    ``weights``, ``biases`` and ``values`` are named by "q", "k", "v" or "out", values also by
    "score" and "softmax", and by their head as the article counts it, or None.
    """

    first: int
    x: list[Grid] = field(default_factory=list)
    memory: list[Grid] = field(default_factory=list)
    rank: int = 9
    weights: dict[Place, Grid] = field(default_factory=dict)
    biases: dict[Place, Grid] = field(default_factory=dict)
    values: dict[Place, Grid] = field(default_factory=dict)
    rows: dict[str, dict[int, Grid]] = field(default_factory=dict)

    @property
    def heads(self) -> int:
        """How many heads have matrices of their own; 0 where none has."""
        return len({head for _, head in [*self.weights, *self.values] if head is not None})

    @property
    def grids(self) -> list[Grid]:
        """Every matrix of weights and biases."""
        return [*self.weights.values(), *self.biases.values()]

    def with_rows(self) -> None:
        """Put rows that were given one by one together."""
        for name, rows in self.rows.items():
            grids = [grid for _, grid in sorted(rows.items())]
            if len({grid.shape for grid in grids}) != 1:
                continue
            if name == "x" and not self.x:
                self.x = grids
            elif name in VALUES and not any(key == name for key, _ in self.values):
                cells = tuple(grid.rows[0] for grid in grids)
                self.values[name, None] = Grid(cells, 2)


def read_givens(statements: list[Statement], text: str) -> list[Givens]:
    """The matrices of each computation, in order."""
    reader = _Collector(sources(text))
    for at, statement in enumerate(statements):
        reader.take(at, statement)
    return reader.finished()


def sources(text: str) -> dict[str, str]:
    """Which input Q, K and V are computed from: {"Q": "Y", "K": "X"} in cross-attention."""
    result: dict[str, str] = {}
    for name, source in _SOURCE.findall(text):
        result.setdefault(name, source)
    return result


def alike(a: Grid, b: Grid) -> bool:
    """Whether two printed matrices are the same up to rounding."""
    if [*map(len, a.rows)] != [*map(len, b.rows)]:
        return False
    pairs = zip(a.cells, b.cells, strict=False)
    return all(abs(x.value - y.value) <= max(x.step, y.step, 1e-9) * 0.51 for x, y in pairs)


class _Collector:
    """Walks the statements and starts a new set where a matrix is given again."""

    def __init__(self, named: dict[str, str]) -> None:
        self.sets = [Givens(0)]
        query, key = named.get("Q"), named.get("K", named.get("V"))
        self.crossed = (query, key) if query and key and query != key else None

    def take(self, at: int, statement: Statement) -> None:
        if statement.aside:
            return
        grids = [g for g in statement.equation.grids if g.whole and g.dims > 0]
        if not grids:
            return
        own = statement.own
        if self.crossed and self._take_crossed(at, statement, grids[-1]):
            return
        if own.weight:
            self._take_weight(at, statement, grids[-1])
        elif (rank := _rank(statement, first=self._is_first)) < 9:
            self._take_input(at, statement, grids[-1], rank)
        elif own.keys and not own.transposed:
            for name in named_values(statement):
                self._take_value(at, statement, name, grids[0])
            for name, keys in _LATER.items():
                if own.keys[0] in keys and grids[-1].dims == 2:
                    place = (name, _head(statement))
                    self.sets[-1].values.setdefault(place, grids[-1])

    @property
    def _is_first(self) -> bool:
        now = self.sets[-1]
        return not now.x and not now.values

    def _take_crossed(self, at: int, statement: Statement, grid: Grid) -> bool:
        label = re.sub(r"[\W]", "", statement.label)
        names = [re.sub(r"[\W]", "", name) for name in self.crossed or ("", "")]
        if grid.dims != 2 or label not in names:
            return False
        if label == names[0] and not self.sets[-1].x:
            self.sets[-1].x, self.sets[-1].rank = [grid], 0
        elif label == names[1] and not self.sets[-1].memory:
            self.sets[-1].memory = [grid]
        return True

    def _take_weight(self, at: int, statement: Statement, grid: Grid) -> None:
        own, now = statement.own, self.sets[-1]
        if grid.dims != 2 and not own.bias:
            return
        for name in own.weight:
            head = None if name == "out" else _head(statement)
            table = now.biases if own.bias else now.weights
            if (name, head) in table and not alike(table[name, head], grid):
                now = self._start(at)
                now.x, now.rank = list(self.sets[-2].x), self.sets[-2].rank
                now.weights = {} if name != "out" else dict(self.sets[-2].weights)
                table = now.biases if own.bias else now.weights
            table.setdefault((name, head), grid)

    def _take_input(self, at: int, statement: Statement, grid: Grid, rank: int) -> None:
        now = self.sets[-1]
        ref = statement.own.row or statement.own.either or statement.own.head
        if grid.dims == 1 and rank < 9 and (ref is not None or rank == 2):
            rows = now.rows.setdefault("x", {})
            number = ref.number if ref is not None else 1000 + len(rows)
            if number in rows and not alike(rows[number], grid):
                now = self._start(at)
                rows = now.rows.setdefault("x", {})
            rows.setdefault(number, grid)
        elif grid.dims == 2 or rank == 0:
            if now.x and alike(now.x[0], grid) and len(now.x) == 1:
                return
            if now.x and rank > now.rank:
                return
            if now.x and (now.rank == rank or len(now.values) > 0):
                weights = dict(now.weights)
                now = self._start(at)
                now.weights = weights
            now.x, now.rank = [grid], rank

    def _take_value(self, at: int, statement: Statement, name: str, grid: Grid) -> None:
        now, head = self.sets[-1], _head(statement)
        ref = statement.own.row or (statement.own.either if grid.dims == 1 else None)
        if grid.dims == 1:
            if ref is not None:
                now.rows.setdefault(name, {}).setdefault(ref.number, grid)
            return
        if (name, head) in now.values and not alike(now.values[name, head], grid):
            if now.x or now.rows.get("x"):
                return
            now = self._start(at)
        now.values.setdefault((name, head), grid)

    def _start(self, at: int) -> Givens:
        if len(self.sets) >= MOST_SETTINGS:
            raise BadArticle(
                "more than {most} different inputs; cut out the worked example", most=MOST_SETTINGS
            )
        self.sets.append(Givens(at))
        return self.sets[-1]

    def finished(self) -> list[Givens]:
        for before, now in zip([None, *self.sets], self.sets, strict=False):
            now.with_rows()
            if before is not None and not now.x:
                for name in VALUES:
                    if not any(key == name for key, _ in now.values):
                        now.values |= {p: g for p, g in before.values.items() if p[0] == name}
        return self.sets


def named_values(statement: Statement) -> list[str]:
    """Which of "q", "k" and "v" a matrix is said to be; all of them in Q = K = V."""
    labels = statement.equation.labels
    hints = [read_label(label).keys for label in labels] if len(labels) > 1 else []
    hints = [keys for keys in hints if keys] or [statement.own.keys]
    names = [name for keys in hints for name, own in VALUES.items() if set(keys) <= set(own)]
    return names if len(names) == len(hints) else []


def _head(statement: Statement) -> int | None:
    """The head of a matrix as the article counts it, from its label or the text before."""
    ref = statement.own.head or statement.own.either
    if ref is None:
        ref = next((hint.head for hint in statement.around if hint.head), None)
    return None if ref is None else ref.number


def _rank(statement: Statement, *, first: bool) -> int:
    """How clearly a matrix is labelled as the input: 0 by symbol, 1 in words, 2 in the context."""
    own, label = statement.own, statement.label
    last = statement.equation.labels[-1] if statement.equation.labels else ""
    first_label = read_label(statement.equation.labels[0]) if statement.equation.labels else own
    if own.keys == ("x",) or first_label.keys == ("x",):
        return 0 if _X.search(label) and own.either is None else 1
    if _INPUT.match(last) and (first or statement.context_keys[:1] == ("x",)):
        return 1
    if own.keys or own.weight or own.head is not None:
        return 9
    near = next((hint.keys for hint in statement.around[:3] if hint.keys), ())
    return 2 if near == ("x",) else 9


def numbers_of(grids: Iterable[Grid]) -> Iterator[int]:
    """The offsets of all printed numbers of some matrices."""
    return (cell.start for grid in grids for cell in grid.cells)
