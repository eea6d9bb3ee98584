"""The weights of one head on one text: queries down, keys across."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwise.lang import Text
from headwise.plots.sheet import MISSING, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAP = "YlGnBu"

MOST_NAMED = 60
"""Up to this many tokens stand at an axis each; of more every n-th does, with its number."""

LONGEST = 16
"""Characters of a token at an axis."""

CELL = 0.19
"""Inches of a cell, while the figure is small enough."""


def heat_map(
    sheet: Sheet,
    title: Text,
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
) -> "Figure":
    """The figure; pairs that are not allowed are grey.

    Args:
        sheet: where it is drawn.
        title: what it shows.
        values: weights from 0 to 1, row by row; NaN where a pair is not allowed.
        rows: the query tokens; text from outside.
        columns: the key tokens; text from outside.
    """
    width = min(max(CELL * len(columns), 2.5), 11.0) + 1.9
    height = min(max(CELL * len(rows), 2.5), 11.0) + 1.6
    figure = sheet.figure(width, height, title)
    axes = figure.subplots()
    axes.set_facecolor(MISSING)
    image = axes.imshow(values, cmap=MAP, vmin=0, vmax=1, interpolation="none")
    axes.xaxis.set_ticks_position("top")
    axes.xaxis.set_label_position("top")
    _name(sheet, axes, "x", columns)
    _name(sheet, axes, "y", rows)
    sheet.label(axes, Text("key"), Text("query"))
    sheet.quiet(axes, 7)
    scale = figure.colorbar(image, ax=axes, pad=0.02, shrink=0.6)
    sheet.quiet(scale.ax, 7)
    scale.outline.set_visible(False)
    sheet.label(scale.ax, None, Text("weight (grey: not allowed)"))
    return figure


def _name(sheet: Sheet, axes: "Axes", axis: str, tokens: Sequence[str]) -> None:
    """The tokens at an axis, each cut to what there is room for."""
    step = -(-len(tokens) // MOST_NAMED) or 1
    places = list(range(0, len(tokens), step))
    names = [_short(tokens[i]) if step == 1 else f"{_short(tokens[i])} {i}" for i in places]
    shown = [sheet.fonts.legible(name) for name in names]
    font = sheet.fonts.properties(7)
    if axis == "x":
        axes.set_xticks(places, shown, rotation=90, fontproperties=font)
    else:
        axes.set_yticks(places, shown, fontproperties=font)


def _short(token: str) -> str:
    return token if len(token) <= LONGEST else token[: LONGEST - 1] + "…"
