"""The loss as more and more heads are taken out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.heads.effect.curve import Point
from headwise.lang import Text
from headwise.plots.sheet import LINES, Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Removal:
    """One way to choose the heads that go.

    Attributes:
        name: how they are chosen.
        points: the curve, as `headwise.heads.effect.curve` measures it.
    """

    name: Text
    points: Sequence[Point]


def ablation(
    sheet: Sheet, title: Text, removals: Sequence[Removal], loss: Text, *, counted: bool = False
) -> "Figure":
    """The figure: a line for each way to choose, in a band that is its interval.

    Args:
        sheet: where it is drawn.
        title: what it shows.
        removals: the curves.
        loss: what the loss is.
        counted: number the heads that are out, instead of giving their share of all heads.
    """
    figure = sheet.figure(6.4, 4.0, title)
    axes = figure.subplots()
    for removal, colour in zip(removals, LINES, strict=False):
        out = [_out(point, counted) for point in removal.points]
        losses = [point.loss for point in removal.points]
        low, high = [loss.low for loss in losses], [loss.high for loss in losses]
        axes.fill_between(out, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(
            out, [loss.mean for loss in losses], "-o", color=colour,
            label=sheet.say(removal.name), linewidth=1.4, markersize=3.5,
        )  # fmt: skip
    axes.grid(axis="y", linewidth=0.4, color="#dddddd")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    share, count = Text("heads taken out, %"), Text("heads taken out")
    sheet.label(axes, count if counted else share, loss)
    if counted:
        axes.locator_params(axis="x", integer=True)
    sheet.quiet(axes)
    axes.legend(frameon=False, prop=sheet.fonts.properties(8), loc="best")
    return figure


def _out(point: Point, counted: bool) -> float:
    """How many heads are out, or how many of a hundred."""
    return len(point.removed) if counted else 100 * point.share
