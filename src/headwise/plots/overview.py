"""Every head of a model at once: a panel for each metric, layers down and heads across."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.heads.metrics import METRICS, Metric
from headwise.heads.names import Head
from headwise.heads.statistics import Statistics
from headwise.lang import Text, Translated, same
from headwise.plots.figure import MISSING, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 4
"""Panels in a row."""

MAP = "YlGnBu"

OPEN = ("entropy", "effective_keys", "distance")
"""The metrics that have no upper end 1: their panel reaches to their largest value."""


UNITS = {"entropy": Text(", nats"), "distance": Text(", tokens")}


@dataclass(frozen=True, eq=False)
class Panel:
    """One metric of all heads of one part of a model.

    Attributes:
        title: what it is.
        values: layer by layer, head by head; NaN where no query could show it. Layers may differ
            in their number of heads.
        largest: the upper end of the scale; None for that of the values.
    """

    title: Text
    values: Sequence[Sequence[float]]
    largest: float | None = 1.0


def panels(statistics: Statistics, part: str, metrics: Sequence[Metric] = METRICS) -> list[Panel]:
    """The panels of one part of a model; each names the head with the largest value.

    A metric that no head has a value of, such as the next token in a causal model, has none.
    """
    layers = [layer for layer in statistics.layers if layer.part == part]
    heads = [[head for head in statistics.heads() if head.layer == layer] for layer in layers]
    made = []
    for metric in metrics:
        values = [[statistics.value(metric, head) for head in row] for row in heads]
        there = _largest(values, heads)
        if not there:
            continue
        name = Translated(metric.name.replace("_", " "), metric.label.zh)
        unit = UNITS.get(metric.name, same(""))
        title = Text("{name}{unit} (most: {head})", name=name, unit=unit, head=there)
        made.append(Panel(title, values, None if metric.name in OPEN else 1.0))
    return made


def _largest(values: Sequence[Sequence[float]], heads: Sequence[Sequence[Head]]) -> str:
    """The head with the largest value; nothing where none has one."""
    pairs = zip((v for row in values for v in row), (h for row in heads for h in row), strict=True)
    known = [(value, head) for value, head in pairs if not math.isnan(value)]
    return str(max(known, key=lambda pair: pair[0])[1]) if known else ""


def overview(sheet: Sheet, title: Text, shown: Sequence[Panel]) -> "Figure":
    """The figure: one panel for each metric, each with its own scale beside it.

    Behind each name stands the head with the largest value; grey cells have none.
    """
    rows = math.ceil(len(shown) / ACROSS)
    deep, wide = _size(shown)
    width, height = max(2.3, min(0.17 * wide + 1.0, 3.6)), max(1.5, min(0.17 * deep + 0.8, 4.5))
    figure = sheet.figure(ACROSS * width, rows * height + 0.5, title)
    axes = figure.subplots(rows, ACROSS, squeeze=False)
    for place, panel in zip(axes.flat, shown, strict=False):
        _draw(sheet, place, panel, (deep, wide))
    for place in axes.flat[len(shown) :]:
        place.set_axis_off()
    for row in axes:
        sheet.label(row[0], None, Text("layer"))
    for column in range(ACROSS):
        filled = [row[column] for i, row in enumerate(axes) if i * ACROSS + column < len(shown)]
        if filled:
            sheet.label(filled[-1], Text("head"), None)
    return figure


def _size(shown: Sequence[Panel]) -> tuple[int, int]:
    layers = max((len(panel.values) for panel in shown), default=1)
    heads = max((len(row) for panel in shown for row in panel.values), default=1)
    return layers, heads


def _draw(sheet: Sheet, axes: "Axes", panel: Panel, size: tuple[int, int]) -> None:
    deep, wide = size
    cells = [[*row, *[math.nan] * (wide - len(row))] for row in panel.values]
    known = [value for row in cells for value in row if not math.isnan(value)]
    largest = panel.largest if panel.largest is not None else max(known, default=1.0) or 1.0
    axes.set_facecolor(MISSING)
    image = axes.imshow(cells, cmap=MAP, vmin=0, vmax=largest, aspect="auto", interpolation="none")
    axes.set_xticks(_ticks(wide))
    axes.set_yticks(_ticks(deep))
    sheet.title(axes, panel.title)
    sheet.quiet(axes, 7)
    scale = axes.figure.colorbar(image, ax=axes, pad=0.02, aspect=18)
    sheet.quiet(scale.ax, 7)
    scale.outline.set_visible(False)


def _ticks(count: int) -> list[int]:
    """At most seven numbers from 0, evenly apart."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if count <= 7 * s)
    return list(range(0, count, step))
