"""Heat maps: the weights of one head, and the divergence of every two heads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from headwise.heads.analysis.similarity import groups
from headwise.lang import Text
from headwise.plots.figure import INK, MISSING, Sheet

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


DIVERGENCE_MAP = "YlGnBu_r"

TOGETHER = 0.1
"""Nats up to which the heads of a frame differ from each other at most."""

MOST_NAMED_HEADS = 80
"""Up to this many heads each have their name at the axes; of more every n-th does."""


def similarity(sheet: Sheet, title: Text, names: Sequence[str], distance: Tensor) -> "Figure":
    """The figure: dark cells are heads that attend alike; a frame is a group that agrees.

    Args:
        sheet: where it is drawn.
        title: what it shows.
        names: of the heads.
        distance: (H, H), symmetric, in nats, 0 on the diagonal.
    """
    found = sorted(groups(distance, TOGETHER), key=lambda group: (-len(group), group[0]))
    order = [head for group in found for head in group]
    side = min(max(0.11 * len(order), 3.2), 11.0)
    figure = sheet.figure(side + 1.7, side + 1.0, title)
    axes = figure.subplots()
    ordered = distance[order][:, order]
    image = axes.imshow(ordered.tolist(), cmap=DIVERGENCE_MAP, vmin=0, interpolation="none")
    _frames(axes, found)
    step = -(-len(order) // MOST_NAMED_HEADS)
    places = list(range(0, len(order), step))
    shown = [sheet.fonts.legible(names[order[i]]) for i in places]
    font = sheet.fonts.properties(6)
    axes.set_xticks(places, shown, rotation=90, fontproperties=font)
    axes.set_yticks(places, shown, fontproperties=font)
    sheet.quiet(axes, 6)
    scale = figure.colorbar(image, ax=axes, pad=0.02, shrink=0.7)
    sheet.quiet(scale.ax, 7)
    scale.outline.set_visible(False)
    label = Text("Jensen–Shannon divergence, nats")
    sheet.label(scale.ax, None, label)
    sheet.label(
        axes, Text("frames: heads that differ by {together} nats at most", together=TOGETHER), None
    )
    return figure


def _frames(axes: "Axes", found: Sequence[Sequence[int]]) -> None:
    from matplotlib.patches import Rectangle

    start = 0
    for group in found:
        if len(group) > 1:
            corner = (start - 0.5, start - 0.5)
            frame = Rectangle(corner, len(group), len(group), fill=False, color=INK, linewidth=0.9)
            axes.add_patch(frame)
        start += len(group)
