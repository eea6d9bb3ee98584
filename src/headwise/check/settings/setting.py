"""The settings of an article: what each of its computations starts from."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.check.expression_tree import BadArticle, Grid
from headwise.check.settings.attention_steps import Place, Tables
from headwise.check.settings.givens import Givens, numbers_of
from headwise.check.settings.stated_facts import StatedFacts
from headwise.check.settings.stated_sizes import StatedSizes
from headwise.check.verdicts.targets import WEIGHTS, rounded, upper
from headwise.errors import BadFile
from headwise.explain.trace import Projections
from headwise.lang import Text
from headwise.masks import Mask

MOST_ROWS, MOST_COLUMNS, MOST_HEADS = 64, 512, 32

Notes = tuple[Text, ...]
MaskFor = Callable[[int, int], Mask]  # build a mask from the number of heads and the length
NAMES = ("q", "k", "v")


@dataclass(frozen=True, eq=False)
class CheckOptions:
    """Inputs that override the article; None takes them from the article."""

    x: Tensor | None = None
    heads: int | None = None
    projections: Projections | None = None
    scale: float | None = None
    mask: MaskFor | None = None


@dataclass(frozen=True, eq=False)
class Setting:
    """What one computation starts from.

    Attributes:
        given: its tables, tokens as rows; ``high`` the same with rounded entries half a step up,
            None where all are exact.
        first: the statement from which it is in force.
        columns: whether the article writes tokens as columns.
        inputs: the offsets of its numbers.
        strict: whether the article says that the projections are what is taken.
        notes: what is taken as given, in words.
    """

    given: Tables
    heads: int
    high: Tables | None = None
    first: int = 0
    columns: bool = False
    inputs: frozenset[int] = frozenset()
    strict: bool = True
    output_unknown: bool = False
    notes: Notes = ()


def candidates(
    givens: Givens, sizes: StatedSizes, facts: StatedFacts, options: CheckOptions, near: int
) -> list[Setting]:
    """Every way to read the matrices of one computation, the likeliest first."""
    builder = _Builder(givens, sizes, facts, options, near)
    result = list(builder.settings())
    if result:
        _check_sizes(result[0])
    elif builder.unfit:
        raise builder.unfit[0]
    return result


def _check_sizes(setting: Setting) -> None:
    for place in (("x", None), ("q", 1), ("q", None)):
        if place not in setting.given:
            continue
        rows, columns = setting.given[place].shape
        if rows > MOST_ROWS or columns > MOST_COLUMNS or setting.heads > MOST_HEADS:
            raise BadArticle(
                "expected an input of at most {most_rows} rows, {most_columns} columns and "
                "{most_heads} heads, got {rows}, {columns} and {heads}; check a smaller example",
                most_rows=MOST_ROWS,
                most_columns=MOST_COLUMNS,
                most_heads=MOST_HEADS,
                rows=rows,
                columns=columns,
                heads=setting.heads,
            )


class _Builder:
    """Builds the settings of one set of matrices."""

    def __init__(
        self,
        givens: Givens,
        sizes: StatedSizes,
        facts: StatedFacts,
        options: CheckOptions,
        near: int,
    ) -> None:
        self.givens, self.sizes, self.facts, self.options = givens, sizes, facts, options
        self.near = near
        self.unfit: list[BadFile] = []
        self.read = {name for name, _ in givens.weights}

    def settings(self) -> Iterator[Setting]:
        options, givens = self.options, self.givens
        x = options.x is not None or bool(givens.x)
        values = {name for name, _ in givens.values}
        projected = options.projections is not None or bool(self.read & set(NAMES))
        if x and projected:
            yield from self._projected()
        elif x and (self.facts.identity or not self.facts.announced):
            yield from self._identity()
        direct = options.x is None and not projected and bool({"q", "k"} <= values)
        if direct and not (x and self.facts.identity):
            yield from self._direct(("q", "k", "v"))
        later = options.x is None and not x and not direct
        if later and {"score", "softmax"} & values:
            yield from self._direct(("score", "softmax", "v"))

    def _projected(self) -> Iterator[Setting]:
        forms = [(Text("Q = X W"), False, False), (Text("Q = X Wᵀ"), True, False)]
        if self.facts.columns and self.options.x is None:
            forms.append((Text("Q = W X"), True, True))
        square = False
        for form, turned, columns in forms:
            if turned and not columns and not (square or self.unfit):
                continue
            try:
                low = self._weights(lambda grid: grid.values, turned, columns)
                high = self._weights(upper, turned, columns)
            except BadFile as error:
                self.unfit.append(error)
                continue
            square = any(grid.shape[0] == grid.shape[1] for grid in self.givens.weights.values())
            if self.options.projections is not None:
                notes: Notes = (Text("weights from the options"),)
            else:
                read = ", ".join(sorted(WEIGHTS[f"W_{name}"] for name in self.read))
                notes = (Text("{names} from the text, {form}", names=read, form=form),)
            yield from self._fitting(low, high, columns, notes)
            if self.options.projections is not None:
                return

    def _identity(self) -> Iterator[Setting]:
        notes = (Text("no weights: projections are the identity"),)
        both = (False, True) if self.facts.columns and self.options.x is None else (False,)
        for columns in both:
            low = self._x(lambda grid: grid.values, columns)
            high = self._x(upper, columns)
            for tables in (low, high):
                eye = torch.eye(tables["x", None].shape[1], dtype=torch.float64)
                tables |= {(f"W_{name}", None): eye for name in (*NAMES, "out")}
            own = any(name in NAMES for name, _ in self.givens.values)
            for setting in self._fitting(low, high, columns, notes):
                yield replace(setting, strict=self.facts.identity or not own)

    def _direct(self, names: tuple[str, ...]) -> Iterator[Setting]:
        grids = {place: grid for place, grid in self.givens.values.items() if place[0] in names}
        heads = self._heads(None)
        both = (False, True) if self.facts.columns else (False,)
        whole = self.givens.values.get(("q", None))
        if whole is not None and whole.dims == 2 and len(whole.rows[0]) % heads:
            heads = 1
        for columns in both:
            low = self._values(grids, lambda grid: grid.values, columns)
            high = self._values(grids, upper, columns)
            wide = sum(t.shape[1] for (name, _), t in low.items() if name == "v")
            for tables in (low, high):
                out = self.givens.weights.get(("out", None))
                if out is not None:
                    tables["W_out", None] = _tensor(out.values)
                elif not self.facts.output_announced or self.facts.identity:
                    tables["W_out", None] = torch.eye(wide, dtype=torch.float64)
            note = Text("Q, K and V are taken as given")
            if "q" not in names:
                note = Text("the scores or the weights are taken as given")
            used = frozenset(numbers_of([*grids.values(), *self.givens.grids]))
            high_used = high if any(map(rounded, grids.values())) else None
            notes = (note, *_rounding_note(*grids.values(), *self.givens.grids))
            yield Setting(low, heads, high_used, self.givens.first, columns, used, notes=notes)

    def _values(
        self, grids: dict[Place, Grid], read: Callable[[Grid], list[list[float]]], columns: bool
    ) -> Tables:
        tables: Tables = {}
        for name in {name for name, _ in grids}:
            own = sorted(
                ((head, g) for (key, head), g in grids.items() if key == name and head is not None),
                key=lambda pair: pair[0],
            )
            whole = grids.get((name, None))
            if own and whole is None:
                each = [(n, grid) for n, (_, grid) in enumerate(own, start=1)]
            elif whole is not None:
                later = name in ("score", "softmax")
                each = [(1 if later else 0, whole)]
            for head, grid in each:
                table = _tensor(read(grid))
                table = table.T if columns else table
                tables[name, head or None] = table
        return tables

    def _x(self, read: Callable[[Grid], list[list[float]]], columns: bool) -> Tables:
        if self.options.x is not None:
            tables: Tables = {("x", None): self.options.x.double()}
        else:
            rows = [row for grid in self.givens.x for row in read(grid)]
            table = torch.tensor(rows, dtype=torch.float64)
            tables = {("x", None): table.T if columns else table}
        if self.givens.memory:
            memory = _tensor(read(self.givens.memory[0]))
            tables["memory", None] = memory.T if columns else memory
        return tables

    def _weights(
        self, read: Callable[[Grid], list[list[float]]], turned: bool, columns: bool
    ) -> Tables:
        tables = self._x(read, columns)
        size = tables["x", None].shape[1]
        given = self.options.projections
        if given is not None:
            named = {"q": given.q, "k": given.k, "v": given.v, "out": given.out}
            tables |= {(f"W_{n}", None): weight.double().T for n, weight in named.items()}
            biases = {n: getattr(given, f"{n}_bias") for n in named}
            return tables | {
                (f"b_{n}", None): b.double() for n, b in biases.items() if b is not None
            }
        for name in NAMES:
            weights = [_turned(_tensor(read(g)), turned) for g in _of(self.givens.weights, name)]
            expected = (
                tables.get(("memory", None), tables["x", None]).shape[1] if name != "q" else size
            )
            for weight in weights:
                if weight.shape[0] != expected:
                    raise _unfit(name, expected, tuple(_turned(weight, turned).shape))
            if weights:
                tables[f"W_{name}", None] = torch.cat(weights, 1)
            elif any(key == name for key, _ in self.givens.values):
                grids = {p: g for p, g in self.givens.values.items() if p[0] == name}
                tables |= self._values(grids, read, columns)
            elif self.facts.identity or name not in self.facts.named:
                tables[f"W_{name}", None] = torch.eye(size, dtype=torch.float64)
        self._output(tables, read, turned)
        for name in (*NAMES, "out"):
            biases_read = [_tensor(read(g)).flatten() for g in _of(self.givens.biases, name)]
            if biases_read:
                tables[f"b_{name}", None] = torch.cat(biases_read)
        return tables

    def _output(
        self, tables: Tables, read: Callable[[Grid], list[list[float]]], turned: bool
    ) -> None:
        grid = self.givens.weights.get(("out", None))
        widths = [t.shape[1] for (name, _), t in tables.items() if name in ("W_v", "v")]
        wide = sum(widths)
        if grid is not None:
            weight = _turned(_tensor(read(grid)), turned)
            if weight.shape[0] != wide:
                raise _unfit("out", wide, tuple(_turned(weight, turned).shape))
            tables["W_out", None] = weight
        elif not self.facts.output_announced or self.facts.identity:
            tables["W_out", None] = torch.eye(wide, dtype=torch.float64)

    def _fitting(self, low: Tables, high: Tables, columns: bool, notes: Notes) -> Iterator[Setting]:
        try:
            yield self._setting(low, high, columns, notes)
        except BadArticle as error:
            self.unfit.append(error)

    def _setting(self, low: Tables, high: Tables, columns: bool, notes: Notes) -> Setting:
        givens = self.givens
        grids = [] if self.options.x is not None else [*givens.x, *givens.memory]
        grids += givens.grids if self.options.projections is None else []
        if any(name in NAMES for name, _ in low):
            grids += list(givens.values.values())
        heads = self._heads(low["x", None].shape[1])
        width = low["W_q", None].shape[1] if ("W_q", None) in low else heads
        if width % heads:
            raise BadArticle(
                "{heads} heads cannot share {width} columns evenly; give the number with --heads N",
                heads=heads,
                width=width,
            )
        note = Text("X from the options")
        if self.options.x is None:
            size = "×".join(map(str, low["x", None].shape))
            note = Text("X ({size}) from line {line}", size=size, line=givens.x[0].cells[0].line)
        return Setting(
            low,
            heads,
            high if any(map(rounded, grids)) else None,
            givens.first,
            columns,
            frozenset(numbers_of(grids)),
            output_unknown=("W_out", None) not in low,
            notes=(note, *notes, *_rounding_note(*grids)),
        )

    def _heads(self, width: int | None) -> int:
        if self.options.heads:
            return self.options.heads
        own = self.givens.heads
        if own > 1:
            return own
        if self.read & set(NAMES):
            width = None  # the heads divide the columns of W, which need not be those of X
            whole = self.givens.weights.get(("q", None))
            width = whole.shape[1] if whole is not None else None
        if width is None and ("q", None) in self.givens.values:
            width = self.givens.values["q", None].shape[-1]
        return self.sizes.heads(width, self.near) or own or 1


def _turned(table: Tensor, turned: bool) -> Tensor:
    return table.T if turned else table


def _tensor(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def _of(table: dict[Place, Grid], name: str) -> list[Grid]:
    """The matrix of all heads, or those of each head in order."""
    if (name, None) in table:
        return [table[name, None]]
    heads = sorted(head for key, head in table if key == name and head is not None)
    return [table[name, head] for head in heads]


def _unfit(name: str, rows: int, got: tuple[int, ...]) -> BadFile:
    return BadFile(
        "{symbol}: expected a matrix with {rows} rows for this input, got {got}; "
        "correct the article or give --weights FILE",
        symbol=WEIGHTS[f"W_{name}"],
        rows=rows,
        got=got,
    )


def _rounding_note(*grids: Grid) -> Notes:
    steps = [min(c.step for c in grid.cells if c.step) for grid in grids if rounded(grid)]
    if not steps:
        return ()
    note = Text(
        "the given numbers are rounded to {places} decimals; differences that this "
        "explains are not reported",
        places=round(-math.log10(max(steps))),
    )
    return (note,)
