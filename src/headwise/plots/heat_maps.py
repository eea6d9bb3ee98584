"""Plot heat maps: a metric of all heads, the weights of a head, the divergence of heads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from torch import Tensor

from headwise.heads.analysis.similarity import groups
from headwise.heads.metrics import METRICS, Metric
from headwise.heads.statistics import Statistics
from headwise.lang import Text, Translated, same
from headwise.plots.figure import INK, MISSING, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MAP = "YlGnBu"

MOST_NAMED = 60
"""The most labelled tokens at an axis; of more tokens, every n-th is labelled with its number."""

LONGEST = 16  # the most characters of a token at an axis
CELL = 0.19  # the size of a cell in inches, unless the figure is too large


def heat_map(
    sheet: Sheet,
    title: Text,
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
) -> "Figure":
    """Plot the attention weights of a head; pairs that are not allowed are grey.

    ``values`` are rows of numbers from 0 to 1, NaN where a pair is not allowed; ``rows`` and
    ``columns`` are the tokens of queries and keys, which are untrusted.
    """
    width, height = (min(max(CELL * len(side), 2.5), 11.0) for side in (columns, rows))
    figure = sheet.figure(width + 1.9, height + 1.6, title)
    axes = figure.subplots()
    axes.set_facecolor(MISSING)
    image = axes.imshow(values, cmap=MAP, vmin=0, vmax=1, interpolation="none")
    axes.xaxis.set_ticks_position("top")
    axes.xaxis.set_label_position("top")
    _name(sheet, axes, "x", columns)
    _name(sheet, axes, "y", rows)
    sheet.label(axes, Text("key"), Text("query"))
    sheet.quiet(axes, 7)
    sheet.colorbar(image, Text("attention weight (grey: not allowed)"), 0.6, 20)
    return figure


def _name(sheet: Sheet, axes: "Axes", axis: str, tokens: Sequence[str]) -> None:
    step = -(-len(tokens) // MOST_NAMED) or 1
    places = list(range(0, len(tokens), step))
    names = [_short(tokens[i]) if step == 1 else f"{_short(tokens[i])} {i}" for i in places]
    shown = [sheet.fonts.legible(name) for name in names]
    set_ticks = axes.set_xticks if axis == "x" else axes.set_yticks
    rotation = 90 if axis == "x" else 0
    set_ticks(places, shown, rotation=rotation, fontproperties=sheet.fonts.properties(7))


def _short(token: str) -> str:
    return token if len(token) <= LONGEST else token[: LONGEST - 1] + "…"


DIVERGENCE_MAP = "YlGnBu_r"

TOGETHER = 0.1  # the largest divergence between heads of a frame, in nats

MOST_NAMED_HEADS = 80
"""The most labelled heads at an axis; of more heads, every n-th is labelled."""


def similarity(sheet: Sheet, title: Text, names: Sequence[str], distance: Tensor) -> "Figure":
    """Plot the divergence of all pairs of heads; a frame is a group of similar heads.

    ``distance`` is (H, H), symmetric, in nats, with 0 on the diagonal.
    """
    clusters = sorted(groups(distance, TOGETHER), key=lambda group: (-len(group), group[0]))
    order = [head for group in clusters for head in group]
    side = min(max(0.11 * len(order), 3.2), 11.0)
    figure = sheet.figure(side + 1.7, side + 1.0, title)
    axes = figure.subplots()
    ordered = distance[order][:, order]
    image = axes.imshow(ordered.tolist(), cmap=DIVERGENCE_MAP, vmin=0, interpolation="none")
    _frames(axes, clusters)
    step = -(-len(order) // MOST_NAMED_HEADS)
    places = list(range(0, len(order), step))
    shown = [sheet.fonts.legible(names[order[i]]) for i in places]
    font = sheet.fonts.properties(6)
    axes.set_xticks(places, shown, rotation=90, fontproperties=font)
    axes.set_yticks(places, shown, fontproperties=font)
    sheet.quiet(axes, 6)
    sheet.colorbar(image, Text("Jensen–Shannon divergence, in nats"), 0.7, 20)
    note = Text("frames: heads that differ by at most {together} nats", together=TOGETHER)
    sheet.label(axes, note, None)
    return figure


def _frames(axes: "Axes", clusters: Sequence[Sequence[int]]) -> None:
    from matplotlib.patches import Rectangle

    start = 0
    for group in clusters:
        if len(group) > 1:
            corner = (start - 0.5, start - 0.5)
            frame = Rectangle(corner, len(group), len(group), fill=False, color=INK, linewidth=0.9)
            axes.add_patch(frame)
        start += len(group)


ACROSS = 4  # the number of panels in a row

OPEN = ("entropy", "effective_keys", "distance")
"""The metrics without the upper end 1; their scale ends at the largest value."""


UNITS = {"entropy": Text(", in nats"), "distance": Text(", in tokens")}


@dataclass(frozen=True, eq=False)
class Panel:
    """A metric of all heads of a part of a model.

    ``values`` are by layer and head, NaN if undefined; layers may differ in their number of heads.
    ``largest`` is the upper end of the scale, None for the largest value.
    """

    title: Text
    values: Sequence[Sequence[float]]
    largest: float | None = 1.0


def panels(statistics: Statistics, part: str, metrics: Sequence[Metric] = METRICS) -> list[Panel]:
    """Return the panels of a part of a model; each title names the head with the largest value.

    A metric that is undefined for all heads, such as `next` in a causal model, has no panel.
    """
    layers = [layer for layer in statistics.layers if layer.part == part]
    heads = [[head for head in statistics.heads() if head.layer == layer] for layer in layers]
    result = []
    for metric in metrics:
        values = [[statistics.value(metric, head) for head in row] for row in heads]
        pairs = zip(chain(*values), chain(*heads), strict=True)
        measured = [(value, head) for value, head in pairs if not math.isnan(value)]
        if not measured:
            continue
        largest = max(measured, key=lambda pair: pair[0])[1]
        name = Translated(metric.name.replace("_", " "), metric.label.zh)
        unit = UNITS.get(metric.name, same(""))
        title = Text("{name}{unit} (highest: {head})", name=name, unit=unit, head=str(largest))
        result.append(Panel(title, values, None if metric.name in OPEN else 1.0))
    return result


def overview(sheet: Sheet, title: Text, shown: Sequence[Panel]) -> "Figure":
    """Plot one panel for each metric, each with a separate colour scale.

    Grey cells are undefined.
    """
    rows = math.ceil(len(shown) / ACROSS)
    deep = max((len(panel.values) for panel in shown), default=1)
    wide = max((len(row) for panel in shown for row in panel.values), default=1)
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


def _draw(sheet: Sheet, axes: "Axes", panel: Panel, size: tuple[int, int]) -> None:
    deep, wide = size
    cells = [[*row, *[math.nan] * (wide - len(row))] for row in panel.values]
    known = [value for row in cells for value in row if not math.isnan(value)]
    largest = panel.largest if panel.largest is not None else max(known, default=1.0) or 1.0
    axes.set_facecolor(MISSING)
    image = axes.imshow(cells, cmap=MAP, vmin=0, vmax=largest, aspect="auto", interpolation="none")
    axes.set_xticks(_ticks(wide))
    axes.set_yticks(_ticks(deep))
    font = sheet.fonts.properties(9.5)
    axes.set_title(sheet.say(panel.title), fontproperties=font, color=INK)
    sheet.quiet(axes, 7)
    sheet.colorbar(image, None, 1, 18)


def _ticks(count: int) -> list[int]:
    """Return at most seven evenly spaced numbers from 0."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if count <= 7 * s)
    return list(range(0, count, step))
