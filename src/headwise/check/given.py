"""What an article says is given: the input, the number of heads, weights, mask and scale.

Authors leave things open: whether W multiplies from the left, whether scores are masked. Each
open question gives several set-ups; the one under which most of the article is right is taken,
and said.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headwise.check.nodes import Grid
from headwise.check.numbers import BLOCKED
from headwise.check.settings import Settings
from headwise.check.spread import rounded, upper
from headwise.check.statements import Statement
from headwise.check.weights import Given, projections
from headwise.errors import BadFile
from headwise.explain.trace import Projections
from headwise.lang import Text
from headwise.masks import Mask, causal, from_tensor

MOST_ROWS, MOST_COLUMNS, MOST_HEADS = 64, 512, 32


MaskFor = Callable[[int, int], Mask]
"""A mask, once the number of heads and the length are known."""


@dataclass(frozen=True, eq=False)
class Options:
    """What the caller gives instead of the article; None leaves it to the article."""

    x: Tensor | None = None
    heads: int | None = None
    projections: Projections | None = None
    scale: float | None = None
    mask: MaskFor | None = None


@dataclass(frozen=True, eq=False)
class Setup:
    """One attention that the article may be about.

    Attributes:
        x, heads, projections, scale, mask: as `headwise.explain.trace.trace` takes them.
        inputs: offsets of the printed numbers that were taken as given.
        hidden: quantities that the article can't mean.
        notes: what was taken, in words.
        upper: input and projections, each entry half a step up where it is printed rounded; None
            where all are exact.
    """

    x: Tensor
    heads: int
    projections: Projections
    scale: float | None = None
    mask: Mask | Tensor | None = None
    inputs: frozenset[int] = frozenset()
    hidden: tuple[str, ...] = ()
    notes: tuple[Text, ...] = field(default=())
    upper: tuple[Tensor, Projections] | None = None


def setups(statements: list[Statement], settings: Settings, options: Options) -> list[Setup]:
    """Every reading of what is given, the likeliest first.

    Raises:
        BadFile: if no input can be found, or it is too large.
    """
    found = list(_inputs(statements, settings, options))
    if not found:
        raise BadFile(
            "FILE: no input X found, such as X = [[0.5, 1.1], [1.0, 0.2]]; give it with --x FILE"
        )
    _bounded(found[0])
    return [
        replace(each, mask=mask, scale=scale, notes=(*each.notes, *said, *told))
        for each in found
        for mask, said in _masks(statements, settings, options, each)
        for scale, told in _scales(settings, options)
    ]


def _bounded(setup: Setup) -> None:
    rows, columns = setup.x.shape
    if rows > MOST_ROWS or columns > MOST_COLUMNS or setup.heads > MOST_HEADS:
        raise BadFile(
            "FILE: expected an input of at most {most_rows} rows, {most_columns} columns "
            "and {most_heads} heads, got {rows}, {columns} and {heads}; check a smaller "
            "example",
            most_rows=MOST_ROWS,
            most_columns=MOST_COLUMNS,
            most_heads=MOST_HEADS,
            rows=rows,
            columns=columns,
            heads=setup.heads,
        )


def _inputs(statements: list[Statement], settings: Settings, options: Options) -> Iterable[Setup]:
    grids, used, note = _x(statements, options)
    x = None if grids is None else [row for grid in grids for row in grid.values]
    given = Given.of(statements)
    top = given.raised()
    heads = _heads(settings, options, given, _width(x, options))
    if x is not None:
        tensor = torch.tensor(x, dtype=torch.float64) if options.x is None else options.x
        high = tensor if options.x is not None else _upper(grids or [])
        both = zip(
            _weights(given, tensor, heads, options),
            _weights(top, tensor, heads, options),
            strict=True,
        )
        doubt = _doubt(*(grids or []), *(given.grids if options.projections is None else ()))
        for (weights, told), (above, _) in both:
            yield Setup(
                tensor,
                heads,
                weights,
                inputs=used | given.used,
                notes=(note, *told, *doubt),
                upper=(high, above) if doubt else None,
            )
    direct = None if options.x is not None or given.weights else given.direct(heads)
    if direct is not None and not (x is not None and settings.identity):
        tensor, weights, cells = direct
        raised = top.direct(heads)
        doubt = _doubt(*given.values.values(), *given.grids)
        yield Setup(
            tensor,
            heads,
            weights,
            inputs=used | cells,
            hidden=("x", "W_q", "W_k", "W_v"),
            notes=(Text("Q, K and V are taken as given"), *doubt),
            upper=raised[:2] if raised is not None and doubt else None,
        )


def _upper(grids: list[Grid]) -> Tensor:
    return torch.tensor([row for grid in grids for row in upper(grid)], dtype=torch.float64)


def _doubt(*grids: Grid) -> tuple[Text, ...]:
    """What is said where given numbers are printed rounded."""
    steps = [min(c.step for c in grid.cells if c.step) for grid in grids if rounded(grid)]
    if not steps:
        return ()
    places = round(-math.log10(max(steps)))
    return (
        Text(
            "the given numbers are rounded to {places} decimals; differences that this "
            "explains are not reported",
            places=places,
        ),
    )


def _heads(settings: Settings, options: Options, given: Given, width: int | None) -> int:
    if given.weights:
        width = None  # the heads divide the columns of W, which need not be those of X
    return options.heads or settings.heads(width) or given.heads or 1


def _width(x: list[list[float]] | None, options: Options) -> int | None:
    if options.x is not None:
        return options.x.shape[1]
    return len(x[0]) if x else None


def _weights(
    given: Given, x: Tensor, heads: int, options: Options
) -> Iterable[tuple[Projections, tuple[Text, ...]]]:
    if options.projections is not None:
        yield options.projections, (Text("weights from the options"),)
    elif not given.weights:
        eye = Projections.identity(x.shape[1])
        yield eye, (Text("no weights: projections are the identity"),)
    else:
        yield from projections(given, x.shape[1], heads)


def _x(
    statements: list[Statement], options: Options
) -> tuple[list[Grid] | None, frozenset[int], Text]:
    """The rows of the input, the offsets of its numbers, and where it is from."""
    if options.x is not None:
        return [], frozenset(), Text("X from the options")
    best: tuple[int, Grid] | None = None
    for statement in statements:
        grid = _matrix(statement)
        rank = _rank(statement) if grid is not None else 9
        if grid is not None and rank < (9 if best is None else best[0]):
            best = (rank, grid)
    rows = _rows(statements)
    if best is None and not rows:
        return None, frozenset(), Text("")
    grids = rows if best is None else [best[1]]
    cells = [cell for grid in grids for cell in grid.cells]
    values = [row for grid in grids for row in grid.values]
    line = cells[0].line
    size = f"{len(values)}×{len(values[0])}"
    note = Text("X ({size}) from line {line}", size=size, line=line)
    return grids, frozenset(cell.start for cell in cells), note


def _matrix(statement: Statement) -> Grid | None:
    grids = [grid for grid in statement.chain.grids if grid.dims > 0 and grid.whole]
    if not grids or (grids[-1].dims == 1 and _rank(statement) > 0):
        return None
    return grids[-1]


def _rank(statement: Statement) -> int:
    """How clearly a matrix is said to be the input: by its symbol, in words, in the line before."""
    own, labels = statement.own, " ".join(statement.chain.labels)
    if own.keys == ("x",) and own.head is None and own.either is None and own.row is None:
        return 0 if re.search(r"(?<![A-Za-z])X(?![A-Za-z_^'′])", labels) else 1
    if own.keys or own.weight or own.head is not None:
        return 9
    near = next((hint.keys for hint in statement.around[:3] if hint.keys), ())
    return 2 if near == ("x",) else 9


def _rows(statements: list[Statement]) -> list[Grid]:
    """x_1 = [..], x_2 = [..], or a list under "the inputs": the rows of the input one by one."""
    named = _sequence(statement for statement in statements if statement.own.keys == ("x",))
    if named:
        return named
    near = [s for s in statements if not s.own.keys and not s.own.weight and _under_input(s)]
    grids = [grid for s in near for grid in s.chain.grids[-1:] if grid.dims == 1 and grid.whole]
    return [grid for grid in grids if grid.shape == grids[0].shape] if len(grids) > 1 else []


def _under_input(statement: Statement) -> bool:
    return next((hint.keys for hint in statement.around if hint.keys), ()) == ("x",)


def _sequence(statements: Iterable[Statement]) -> list[Grid]:
    """Numbered rows, each number once."""
    found: list[Grid] = []
    seen: set[int] = set()
    for statement in statements:
        grids = [grid for grid in statement.chain.grids if grid.dims == 1 and grid.whole]
        ref = statement.own.row or statement.own.either or statement.own.head
        if ref is None or not grids or ref.number in seen:
            continue
        if found and grids[-1].shape != found[0].shape:
            break
        seen.add(ref.number)
        found.append(grids[-1])
    return found


def _masks(
    statements: list[Statement], settings: Settings, options: Options, setup: Setup
) -> list[tuple[Mask | Tensor | None, tuple[Text, ...]]]:
    if options.mask is not None:
        given = options.mask(setup.heads, len(setup.x))
        return [(given, (Text("mask from the options"),))]
    none: tuple[Mask | Tensor | None, tuple[Text, ...]] = (None, ())
    pattern = _pattern(statements)
    lower = (causal(), (Text("the mask is causal"),))
    found: list[tuple[Mask | Tensor | None, tuple[Text, ...]]] = []
    if pattern is not None:
        told = Text("the mask is read from the blocked scores")
        found.append((from_tensor(pattern, "q k"), (told,)))
    if settings.masked:
        found.append(lower)
    return [*found, none]


def _pattern(statements: list[Statement]) -> Tensor | None:
    """Who may attend, where an article prints a square of scores with minus infinities in it."""
    for statement in statements:
        for grid in statement.chain.grids:
            if grid.dims == 2 and grid.whole and grid.shape[0] == grid.shape[1]:
                rows = grid.values
                if any(value <= BLOCKED for row in rows for value in row):
                    return torch.tensor([[value > BLOCKED for value in row] for row in rows])
    return None


def _scales(settings: Settings, options: Options) -> list[tuple[float | None, tuple[Text, ...]]]:
    if options.scale is not None:
        return [(options.scale, (Text("scale from the options"),))]
    usual: tuple[float | None, tuple[Text, ...]] = (None, ())
    told = Text("scores are not scaled")
    return [(1.0, (told,)), usual] if settings.unscaled else [usual]
