"""The problem setup of an article: input, number of heads, weights, mask and scale.

Articles leave details open, such as the side on which W multiplies or whether scores are masked.
Each open detail gives several setups; `check` reports the one under which most numbers are right.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.check.expression_tree import BLOCKED, BadArticle, Grid
from headwise.check.stated_values import StatedMatrices, StatedSizes, offsets, projections
from headwise.check.statements import Statement
from headwise.check.targets import Inputs, rounded, upper
from headwise.explain.trace import Projections
from headwise.lang import Text
from headwise.masks import Mask, causal, from_tensor

MOST_ROWS, MOST_COLUMNS, MOST_HEADS = 64, 512, 32

Notes = tuple[Text, ...]
MaskFor = Callable[[int, int], Mask]  # build a mask from the number of heads and the length


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
    """One attention that the article may compute, as `headwise.explain.trace.trace` takes it.

    ``inputs`` are the offsets of its numbers, ``hidden`` the quantities that are not in the
    article, ``notes`` the assumptions in words, and ``upper`` the inputs with rounded entries half
    a step up; None where all are exact.
    """

    x: Tensor
    heads: int
    projections: Projections
    scale: float | None = None
    mask: Mask | Tensor | None = None
    inputs: frozenset[int] = frozenset()
    hidden: tuple[str, ...] = ()
    notes: Notes = ()
    upper: Inputs | None = None


def setups(statements: list[Statement], sizes: StatedSizes, options: CheckOptions) -> list[Setup]:
    """Every possible setup, the likeliest first; raises `BadArticle` without a usable input."""
    result = list(_inputs(statements, sizes, options))
    if not result:
        raise BadArticle(
            "no input X found, such as X = [[0.5, 1.1], [1.0, 0.2]]; give it with --x FILE"
        )
    _check_sizes(result[0])
    return [
        replace(setup, mask=mask, scale=scale, notes=(*setup.notes, *mask_notes, *scale_notes))
        for setup in result
        for mask, mask_notes in _masks(statements, sizes, options, setup)
        for scale, scale_notes in _scales(sizes, options)
    ]


def _check_sizes(setup: Setup) -> None:
    rows, columns = setup.x.shape
    if rows > MOST_ROWS or columns > MOST_COLUMNS or setup.heads > MOST_HEADS:
        raise BadArticle(
            "expected an input of at most {most_rows} rows, {most_columns} columns and "
            "{most_heads} heads, got {rows}, {columns} and {heads}; check a smaller example",
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
    grids, note = _x(statements) if options.x is None else ([], Text("X from the options"))
    x, high = options.x, options.x
    if grids:
        x, high = _tensor(grid.values for grid in grids), _tensor(map(upper, grids))
    used = offsets(grids)
    stated = StatedMatrices.of(statements)
    raised = stated.raised()
    heads = _heads(sizes, options, stated, None if x is None else x.shape[1])
    if x is not None and high is not None:
        weights = _weights(stated, x, options)
        raised_weights = _weights(raised, x, options)
        rounding_note = _rounding_note(
            *grids, *(stated.grids if options.projections is None else ())
        )
        for (low, notes), (above, _) in zip(weights, raised_weights, strict=True):
            setup = Setup(x, heads, low, inputs=used | offsets(stated.grids))
            setup_upper = (high, above) if rounding_note else None
            yield replace(setup, notes=(note, *notes, *rounding_note), upper=setup_upper)
    direct = None if options.x is not None or stated.weights else stated.direct(heads)
    if direct is not None and not (x is not None and sizes.identity):
        tensor, projections, cells = direct
        above_direct = raised.direct(heads)
        rounding_note = _rounding_note(*stated.values.values(), *stated.grids)
        setup_upper = above_direct[:2] if above_direct is not None and rounding_note else None
        setup = Setup(tensor, heads, projections, inputs=used | cells, upper=setup_upper)
        note = Text("Q, K and V are taken as given")
        hidden = ("x", "W_q", "W_k", "W_v")
        yield replace(setup, hidden=hidden, notes=(note, *rounding_note))


def _tensor(tables: Iterable[list[list[float]]]) -> Tensor:
    return torch.tensor([row for table in tables for row in table], dtype=torch.float64)


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


def _heads(
    sizes: StatedSizes, options: CheckOptions, stated: StatedMatrices, width: int | None
) -> int:
    if stated.weights:
        width = None  # the heads divide the columns of W, which need not be those of X
    return options.heads or sizes.heads(width) or stated.heads or 1


def _weights(
    stated: StatedMatrices, x: Tensor, options: CheckOptions
) -> Iterable[tuple[Projections, Notes]]:
    if options.projections is not None:
        yield options.projections, (Text("weights from the options"),)
    elif not stated.weights:
        eye = Projections.identity(x.shape[1])
        yield eye, (Text("no weights: projections are the identity"),)
    else:
        yield from projections(stated, x.shape[1])


def _x(statements: list[Statement]) -> tuple[list[Grid], Text]:
    """The rows of the input, and a note on their origin."""
    ranked = [(_rank(s), grid) for s in statements if (grid := _matrix(s)) is not None]
    rank, best = min(ranked, key=lambda pair: pair[0], default=(9, None))
    grids = [best] if best is not None and rank < 9 else _rows(statements)
    if not grids:
        return [], Text("")
    size = f"{sum(len(grid.rows) for grid in grids)}×{len(grids[0].rows[0])}"
    line = grids[0].cells[0].line
    return grids, Text("X ({size}) from line {line}", size=size, line=line)


def _matrix(statement: Statement) -> Grid | None:
    grids = [grid for grid in statement.equation.grids if grid.dims > 0 and grid.whole]
    if not grids or (grids[-1].dims == 1 and _rank(statement) > 0):
        return None
    return grids[-1]


def _rank(statement: Statement) -> int:
    """How clearly a matrix is labelled as the input: 0 by symbol, 1 in words, 2 in the context."""
    own, labels = statement.own, " ".join(statement.equation.labels)
    if own.keys == ("x",) and own.head is own.either is own.row is None:
        return 0 if re.search(r"(?<![A-Za-z])X(?![A-Za-z_^'′])", labels) else 1
    if own.keys or own.weight or own.head is not None:
        return 9
    near = replace(statement, around=statement.around[:3])
    return 2 if near.context_keys == ("x",) else 9


def _rows(statements: list[Statement]) -> list[Grid]:
    """The rows of an input given one by one: x_1 = [..], or a list under "the inputs"."""
    named = _sequence(statement for statement in statements if statement.own.keys == ("x",))
    if named:
        return named
    near = [s for s in statements if not s.own.keys and not s.own.weight]
    under = [s.equation.grids[-1:] for s in near if s.context_keys == ("x",)]
    grids = [grid for last in under for grid in last if grid.dims == 1 and grid.whole]
    return [grid for grid in grids if grid.shape == grids[0].shape] if len(grids) > 1 else []


def _sequence(statements: Iterable[Statement]) -> list[Grid]:
    """Numbered rows, each number once."""
    rows: dict[int, Grid] = {}
    for statement in statements:
        grids = [grid for grid in statement.equation.grids if grid.dims == 1 and grid.whole]
        ref = statement.own.row or statement.own.either or statement.own.head
        if ref is None or not grids or ref.number in rows:
            continue
        if any(row.shape != grids[-1].shape for row in rows.values()):
            break
        rows[ref.number] = grids[-1]
    return list(rows.values())


def _masks(
    statements: list[Statement], sizes: StatedSizes, options: CheckOptions, setup: Setup
) -> list[tuple[Mask | Tensor | None, Notes]]:
    if options.mask is not None:
        mask = options.mask(setup.heads, len(setup.x))
        return [(mask, (Text("mask from the options"),))]
    result: list[tuple[Mask | Tensor | None, Notes]] = [(None, ())]
    if sizes.masked:
        result.insert(0, (causal(), (Text("the mask is causal"),)))
    pattern = _pattern(statements)
    if pattern is not None:
        note = Text("the mask is read from the blocked scores")
        result.insert(0, (from_tensor(pattern, "q k"), (note,)))
    return result


def _pattern(statements: list[Statement]) -> Tensor | None:
    """The pairs that may attend, from printed square scores with entries of minus infinity."""
    for grid in (grid for statement in statements for grid in statement.equation.grids):
        if grid.dims == 2 and grid.whole and grid.shape[0] == grid.shape[1]:
            scores = torch.tensor(grid.values, dtype=torch.float64)
            if bool((scores <= BLOCKED).any()):
                return scores > BLOCKED
    return None


def _scales(sizes: StatedSizes, options: CheckOptions) -> list[tuple[float | None, Notes]]:
    if options.scale is not None:
        return [(options.scale, (Text("scale from the options"),))]
    usual: tuple[float | None, Notes] = (None, ())
    return [(1.0, (Text("scores are not scaled"),)), usual] if sizes.unscaled else [usual]
