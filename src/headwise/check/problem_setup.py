"""The problem setup of an article: input, number of heads, weights, mask and scale.

Articles leave details open, such as the side on which W multiplies or whether scores are masked.
Each open detail gives several setups; `check` takes the one under which most numbers are right, and
reports it.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headwise.check.expression_tree import BLOCKED, BadArticle, Grid
from headwise.check.stated_values import StatedMatrices, StatedSizes, projections
from headwise.check.statements import Statement
from headwise.check.targets import rounded, upper
from headwise.explain.trace import Projections
from headwise.lang import Text
from headwise.masks import Mask, causal, from_tensor

MOST_ROWS, MOST_COLUMNS, MOST_HEADS = 64, 512, 32


MaskFor = Callable[[int, int], Mask]
"""Build a mask from the number of heads and the length."""


@dataclass(frozen=True, eq=False)
class CheckOptions:
    """Inputs that override the article; None takes them from the article."""

    x: Tensor | None = None
    heads: int | None = None
    projections: Projections | None = None
    scale: float | None = None
    mask: MaskFor | None = None


@dataclass(frozen=True, eq=False)
class Setup:
    """One attention that the article may compute.

    Attributes:
        x, heads, projections, scale, mask: as `headwise.explain.trace.trace` takes them.
        inputs: the offsets of the printed numbers that are inputs.
        hidden: quantities that are not in the article.
        notes: the assumptions, in words.
        upper: input and projections with rounded entries half a step up; None where all are
            exact.
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


def setups(statements: list[Statement], sizes: StatedSizes, options: CheckOptions) -> list[Setup]:
    """Every possible setup, the likeliest first.

    Raises:
        BadArticle: if no input can be found, or it is too large.
    """
    result = list(_inputs(statements, sizes, options))
    if not result:
        raise BadArticle(
            "no input X found, such as X = [[0.5, 1.1], [1.0, 0.2]]; give it with --x FILE"
        )
    _bounded(result[0])
    return [
        replace(setup, mask=mask, scale=scale, notes=(*setup.notes, *mask_notes, *scale_notes))
        for setup in result
        for mask, mask_notes in _masks(statements, sizes, options, setup)
        for scale, scale_notes in _scales(sizes, options)
    ]


def _bounded(setup: Setup) -> None:
    rows, columns = setup.x.shape
    if rows > MOST_ROWS or columns > MOST_COLUMNS or setup.heads > MOST_HEADS:
        raise BadArticle(
            "expected an input of at most {most_rows} rows, {most_columns} columns "
            "and {most_heads} heads, got {rows}, {columns} and {heads}; check a smaller "
            "example",
            most_rows=MOST_ROWS,
            most_columns=MOST_COLUMNS,
            most_heads=MOST_HEADS,
            rows=rows,
            columns=columns,
            heads=setup.heads,
        )


def _inputs(
    statements: list[Statement], sizes: StatedSizes, options: CheckOptions
) -> Iterable[Setup]:
    grids, used, note = _x(statements, options)
    x = None if grids is None else [row for grid in grids for row in grid.values]
    given = StatedMatrices.of(statements)
    top = given.raised()
    heads = _heads(sizes, options, given, _width(x, options))
    if x is not None:
        tensor = torch.tensor(x, dtype=torch.float64) if options.x is None else options.x
        high = tensor if options.x is not None else _upper(grids or [])
        both = zip(
            _weights(given, tensor, heads, options),
            _weights(top, tensor, heads, options),
            strict=True,
        )
        rounding_note = _rounding_note(
            *(grids or []), *(given.grids if options.projections is None else ())
        )
        for (weights, weight_notes), (above, _) in both:
            yield Setup(
                tensor,
                heads,
                weights,
                inputs=used | given.used,
                notes=(note, *weight_notes, *rounding_note),
                upper=(high, above) if rounding_note else None,
            )
    direct = None if options.x is not None or given.weights else given.direct(heads)
    if direct is not None and not (x is not None and sizes.identity):
        tensor, weights, cells = direct
        raised = top.direct(heads)
        rounding_note = _rounding_note(*given.values.values(), *given.grids)
        yield Setup(
            tensor,
            heads,
            weights,
            inputs=used | cells,
            hidden=("x", "W_q", "W_k", "W_v"),
            notes=(Text("Q, K and V are taken as given"), *rounding_note),
            upper=raised[:2] if raised is not None and rounding_note else None,
        )


def _upper(grids: list[Grid]) -> Tensor:
    return torch.tensor([row for grid in grids for row in upper(grid)], dtype=torch.float64)


def _rounding_note(*grids: Grid) -> tuple[Text, ...]:
    """A note where inputs are printed rounded."""
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


def _heads(
    sizes: StatedSizes, options: CheckOptions, given: StatedMatrices, width: int | None
) -> int:
    if given.weights:
        width = None  # the heads divide the columns of W, which need not be those of X
    return options.heads or sizes.heads(width) or given.heads or 1


def _width(x: list[list[float]] | None, options: CheckOptions) -> int | None:
    if options.x is not None:
        return options.x.shape[1]
    return len(x[0]) if x else None


def _weights(
    given: StatedMatrices, x: Tensor, heads: int, options: CheckOptions
) -> Iterable[tuple[Projections, tuple[Text, ...]]]:
    if options.projections is not None:
        yield options.projections, (Text("weights from the options"),)
    elif not given.weights:
        eye = Projections.identity(x.shape[1])
        yield eye, (Text("no weights: projections are the identity"),)
    else:
        yield from projections(given, x.shape[1], heads)


def _x(
    statements: list[Statement], options: CheckOptions
) -> tuple[list[Grid] | None, frozenset[int], Text]:
    """The rows of the input, the offsets of its numbers, and a note on its origin."""
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
    grids = [grid for grid in statement.equation.grids if grid.dims > 0 and grid.whole]
    if not grids or (grids[-1].dims == 1 and _rank(statement) > 0):
        return None
    return grids[-1]


def _rank(statement: Statement) -> int:
    """How clearly a matrix is labelled as the input: 0 by symbol, 1 in words, 2 in the context."""
    own, labels = statement.own, " ".join(statement.equation.labels)
    if own.keys == ("x",) and own.head is None and own.either is None and own.row is None:
        return 0 if re.search(r"(?<![A-Za-z])X(?![A-Za-z_^'′])", labels) else 1
    if own.keys or own.weight or own.head is not None:
        return 9
    near = next((hint.keys for hint in statement.around[:3] if hint.keys), ())
    return 2 if near == ("x",) else 9


def _rows(statements: list[Statement]) -> list[Grid]:
    """The rows of an input given one by one: x_1 = [..], or a list under "the inputs"."""
    named = _sequence(statement for statement in statements if statement.own.keys == ("x",))
    if named:
        return named
    near = [s for s in statements if not s.own.keys and not s.own.weight and _under_input(s)]
    grids = [grid for s in near for grid in s.equation.grids[-1:] if grid.dims == 1 and grid.whole]
    return [grid for grid in grids if grid.shape == grids[0].shape] if len(grids) > 1 else []


def _under_input(statement: Statement) -> bool:
    return next((hint.keys for hint in statement.around if hint.keys), ()) == ("x",)


def _sequence(statements: Iterable[Statement]) -> list[Grid]:
    """Numbered rows, each number once."""
    result: list[Grid] = []
    seen: set[int] = set()
    for statement in statements:
        grids = [grid for grid in statement.equation.grids if grid.dims == 1 and grid.whole]
        ref = statement.own.row or statement.own.either or statement.own.head
        if ref is None or not grids or ref.number in seen:
            continue
        if result and grids[-1].shape != result[0].shape:
            break
        seen.add(ref.number)
        result.append(grids[-1])
    return result


def _masks(
    statements: list[Statement], sizes: StatedSizes, options: CheckOptions, setup: Setup
) -> list[tuple[Mask | Tensor | None, tuple[Text, ...]]]:
    if options.mask is not None:
        given = options.mask(setup.heads, len(setup.x))
        return [(given, (Text("mask from the options"),))]
    none: tuple[Mask | Tensor | None, tuple[Text, ...]] = (None, ())
    pattern = _pattern(statements)
    lower = (causal(), (Text("the mask is causal"),))
    result: list[tuple[Mask | Tensor | None, tuple[Text, ...]]] = []
    if pattern is not None:
        note = Text("the mask is read from the blocked scores")
        result.append((from_tensor(pattern, "q k"), (note,)))
    if sizes.masked:
        result.append(lower)
    return [*result, none]


def _pattern(statements: list[Statement]) -> Tensor | None:
    """The pairs that may attend, from printed square scores with entries of minus infinity."""
    for statement in statements:
        for grid in statement.equation.grids:
            if grid.dims == 2 and grid.whole and grid.shape[0] == grid.shape[1]:
                rows = grid.values
                if any(value <= BLOCKED for row in rows for value in row):
                    return torch.tensor([[value > BLOCKED for value in row] for row in rows])
    return None


def _scales(
    sizes: StatedSizes, options: CheckOptions
) -> list[tuple[float | None, tuple[Text, ...]]]:
    if options.scale is not None:
        return [(options.scale, (Text("scale from the options"),))]
    usual: tuple[float | None, tuple[Text, ...]] = (None, ())
    note = Text("scores are not scaled")
    return [(1.0, (note,)), usual] if sizes.unscaled else [usual]
