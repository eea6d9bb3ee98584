"""The projections that an article gives, as `torch.nn.Linear` would hold them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headwise.check.nodes import Grid
from headwise.check.spread import upper
from headwise.check.statements import Statement
from headwise.errors import BadFile
from headwise.explain.trace import Projections
from headwise.lang import Text

NAMES = ("q", "k", "v", "out")
_SYMBOL = {"q": "W^Q", "k": "W^K", "v": "W^V", "out": "W^O"}
_DIRECT = {"q": ("q", "Q"), "k": ("k", "K"), "v": ("v", "V")}


@dataclass
class Given:
    """Matrices that an article states under the name of a weight, or of Q, K and V.

    Attributes:
        weights: by name and head as written (None for all heads): the matrix.
        biases: the same for biases.
        values: Q, K and V themselves, by name and head.
        cells: the offsets of the numbers of each.
    """

    weights: dict[tuple[str, int | None], Grid] = field(default_factory=dict)
    biases: dict[tuple[str, int | None], Grid] = field(default_factory=dict)
    values: dict[tuple[str, int | None], Grid] = field(default_factory=dict)

    @classmethod
    def of(cls, statements: list[Statement]) -> "Given":
        """Everything of the kind in an article; the first statement of a thing counts."""
        given = cls()
        for statement in statements:
            grids = [grid for grid in statement.chain.grids if grid.whole and grid.dims > 0]
            if grids:
                given._take(statement, grids)
        return given

    def _take(self, statement: Statement, grids: list[Grid]) -> None:
        own = statement.own
        around = next((hint.head for hint in statement.around if hint.head), None)
        ref = own.head or own.either
        head = None if ref is None else ref.number
        if own.weight and own.bias:
            for name in own.weight:
                self.biases.setdefault((name, head), grids[-1])
        elif own.weight and grids[-1].dims == 2:
            for name in own.weight:
                place = (name, around.number if head is None and around else head)
                self.weights.setdefault((name, None) if name == "out" else place, grids[-1])
        elif grids[0].dims == 2 and own.keys and not own.transposed:
            for name, keys in _DIRECT.items():
                if set(own.keys) <= set(keys):
                    place = (name, around.number if head is None and around else head)
                    self.values.setdefault(place, grids[0])

    @property
    def heads(self) -> int:
        """How many heads have weights of their own; 0 where none has."""
        return len({head for name, head in self.weights if head is not None and name != "out"})

    @property
    def grids(self) -> list[Grid]:
        """Every matrix of weights and biases."""
        return [*self.weights.values(), *self.biases.values()]

    def raised(self) -> "Given":
        """The same, each number half a step up where its matrix is printed rounded."""
        tables = (self.weights, self.biases, self.values)
        return Given(*({place: _raised(grid) for place, grid in t.items()} for t in tables))

    @property
    def used(self) -> frozenset[int]:
        """The offsets of all numbers of weights and biases."""
        return _offsets(self.grids)

    def direct(self, heads: int) -> tuple[Tensor, Projections, frozenset[int]] | None:
        """An input and projections that give exactly the Q, K and V stated; None if one lacks."""
        stated = [self._stated(name, heads) for name in _DIRECT]
        tables = [table for table, _ in stated if table is not None]
        if len(tables) < 3 or len({len(table) for table in tables}) > 1:
            return None
        x = torch.cat(tables, 1)
        ends = torch.split(torch.eye(x.shape[1], dtype=torch.float64), [t.shape[1] for t in tables])
        if tables[0].shape[1] != tables[1].shape[1]:
            return None
        inner = tables[2].shape[1]
        out = self.weights.get(("out", None))
        square = torch.eye(inner, dtype=torch.float64) if out is None else _tensor(out).T
        cells = frozenset().union(*(cells for _, cells in stated))
        return x, Projections(ends[0], ends[1], ends[2], square), cells

    def _stated(self, name: str, heads: int) -> tuple[Tensor | None, frozenset[int]]:
        if (name, None) in self.values:
            grid = self.values[name, None]
            return _tensor(grid), _offsets([grid])
        own = [grid for (key, _), grid in sorted(self.values.items(), key=str) if key == name]
        if len(own) != heads or len({len(grid.rows) for grid in own}) != 1:
            return None, frozenset()
        return torch.cat([_tensor(grid) for grid in own], 1), _offsets(own)


def _raised(grid: Grid) -> Grid:
    rows = zip(grid.rows, upper(grid), strict=True)
    cells = tuple(
        tuple(replace(c, value=v) for c, v in zip(row, values, strict=True) if c is not None)
        for row, values in rows
    )
    return replace(grid, rows=cells)


def _offsets(grids: Iterable[Grid]) -> frozenset[int]:
    return frozenset(cell.start for grid in grids for cell in grid.cells)


def _tensor(grid: Grid) -> Tensor:
    return torch.tensor(grid.values, dtype=torch.float64)


def projections(
    given: Given, embed_dim: int, heads: int
) -> Iterable[tuple[Projections, tuple[Text, ...]]]:
    """The projections of an article: Q = X W as such articles write, and Q = X Wᵀ where it fits.

    Raises:
        BadFile: if a matrix fits the input in neither way.
    """
    last = None
    for turned in (False, True):
        try:
            made = _made(given, embed_dim, heads, turned=turned)
        except BadFile as error:
            last = last or error
            continue
        last = None if turned else last
        told = Text("Q = X Wᵀ") if turned else Text("Q = X W")
        names = ", ".join(sorted({_SYMBOL[name] for name, _ in given.weights}))
        said = Text("{names} from the text, {told}", names=names, told=told)
        yield made, (said,)
        last = None
        if not any(_square(grid) for grid in given.weights.values()):
            return
    if last is not None and not _fits_one(given, embed_dim, heads):
        raise last


def _fits_one(given: Given, embed_dim: int, heads: int) -> bool:
    for turned in (False, True):
        try:
            _made(given, embed_dim, heads, turned=turned)
        except BadFile:
            continue
        return True
    return False


def _square(grid: Grid) -> bool:
    return grid.shape[0] == grid.shape[1]


def _made(given: Given, embed_dim: int, heads: int, *, turned: bool) -> Projections:
    inner = next(
        (_width(given, name, heads, turned) for name in NAMES[:3] if _has(given, name)), embed_dim
    )
    found = {}
    for name in NAMES[:3]:
        found[name] = _one(given, name, embed_dim, turned) if _has(given, name) else None
        if found[name] is None:
            if inner != embed_dim:
                raise _unfit(name, (embed_dim, inner), (0, 0))
            found[name] = torch.eye(embed_dim, dtype=torch.float64)
    width = found["v"].shape[0] if found["v"] is not None else inner
    out = torch.eye(width, dtype=torch.float64)
    if ("out", None) in given.weights:
        out = _one(given, "out", width, turned)
    biases = {f"{n}_bias": _bias(given, n) for n in NAMES if any(k == n for k, _ in given.biases)}
    q, k, v = (found[name] for name in NAMES[:3])
    if q is None or k is None or v is None:
        raise _unfit("q", (embed_dim, inner), (0, 0))
    return Projections(q, k, v, out, **biases)


def _has(given: Given, name: str) -> bool:
    return any(key == name for key, _ in given.weights)


def _of(table: dict[tuple[str, int | None], Grid], name: str) -> list[Grid]:
    """The matrix of all heads, or those of each head in order."""
    if (name, None) in table:
        return [table[name, None]]
    numbers = sorted(head for key, head in table if key == name and head is not None)
    return [table[name, head] for head in numbers]


def _width(given: Given, name: str, heads: int, turned: bool) -> int:
    del heads
    return sum(grid.shape[0 if turned else 1] for grid in _of(given.weights, name))


def _one(given: Given, name: str, size: int, turned: bool) -> Tensor:
    """One projection laid out as in `torch.nn.Linear`: (outputs, inputs)."""
    tables = []
    for grid in _of(given.weights, name):
        weight = _tensor(grid)
        if weight.shape[1 if turned else 0] != size:
            raise _unfit(name, (size,), tuple(weight.shape))
        tables.append(weight if turned else weight.T)
    return torch.cat(tables)


def _bias(given: Given, name: str) -> Tensor:
    return torch.cat([_tensor(grid).flatten() for grid in _of(given.biases, name)])


def _unfit(name: str, expected: tuple[int, ...], got: tuple[int, ...]) -> BadFile:
    rows = expected[0]
    return BadFile(
        "{symbol}: expected a matrix with {rows} rows for this input, got {got}; "
        "correct the article or give --weights FILE",
        symbol=_SYMBOL[name],
        rows=rows,
        got=got,
    )
