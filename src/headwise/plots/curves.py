"""Plot curves: the attention by distance, and the loss as heads are ablated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.heads.ablation.curve import Point
from headwise.heads.ablation.experiment.ablation_report import title
from headwise.heads.ablation.experiment.experiment import AblationResult
from headwise.heads.ablation.loss_effects import Interval
from headwise.lang import Text
from headwise.plots.figure import FAINT, LINES, Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


UNSEEN = 1e-4  # smaller shares are less than the width of the line
TICKS = 9  # the approximate number of ticks


@dataclass(frozen=True, eq=False)
class Curve:
    """A line of a figure; values are NaN if undefined, and a baseline is dashed."""

    name: Text
    values: Sequence[float]
    baseline: bool = False


def profile(
    sheet: Sheet, title: Text, places: Sequence[str], curves: Sequence[Curve], across: Text
) -> "Figure":
    """Plot a line for each of up to seven heads, and a dashed line for each baseline.

    ``places`` are the labels of the points, such as "-1"; ``across`` is the label of the axis. A
    sum over many places, such as "< -16", is plotted as a separate mark.
    """
    figure = sheet.figure(7.5, 4.0, title)
    axes = figure.subplots()
    reached = [i for i in range(len(places)) if any(curve.values[i] > UNSEEN for curve in curves)]
    shown = range(min(reached, default=0), max(reached, default=len(places) - 1) + 1)
    ends = [i for i in shown if places[i].startswith(("<", ">"))]
    line = [i for i in shown if i not in ends]
    colours = iter(LINES * (1 + len(curves) // len(LINES)))
    for curve in curves:
        colour, dash = (FAINT, "--") if curve.baseline else (next(colours), "-")
        mark = "" if curve.baseline else "o"
        axes.plot(
            line, [curve.values[i] for i in line], dash, color=colour, marker=mark,
            label=sheet.say(curve.name), linewidth=1.4, markersize=3,
        )  # fmt: skip
        axes.plot(
            ends, [curve.values[i] for i in ends], color=colour, marker=mark or "_",
            linestyle="none", markersize=4 if mark else 9,
        )  # fmt: skip
    middle, step = len(places) // 2, max(1, round(len(shown) / TICKS))
    regular = [i for i in line if (i - middle) % step == 0]
    ticks = sorted(ends + [i for i in regular if all(abs(i - end) > step / 2 for end in ends)])
    axes.set_xticks(ticks, [places[i] for i in ticks], fontproperties=sheet.fonts.properties())
    axes.set_ylim(0, None)
    sheet.finish_curves(axes, across, Text("share of the attention"))
    return figure


@dataclass(frozen=True)
class Removal:
    """A way to select the heads to ablate, and its curve from `headwise.heads.ablation.curve`."""

    name: Text
    points: Sequence[Point]


def ablation(
    sheet: Sheet, title: Text, removals: Sequence[Removal], loss: Text, *, counted: bool = False
) -> "Figure":
    """Plot a line for each way to select the heads, with a band for its interval.

    ``loss`` is the label of the vertical axis. The horizontal axis is the share of all heads that
    is ablated, or their number if ``counted`` is true.
    """
    figure = sheet.figure(6.4, 4.0, title)
    axes = figure.subplots()
    for removal, colour in zip(removals, LINES, strict=False):
        out = [len(p.removed) if counted else 100 * p.share for p in removal.points]
        losses = [point.loss for point in removal.points]
        low, high = [loss.low for loss in losses], [loss.high for loss in losses]
        axes.fill_between(out, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(
            out, [loss.mean for loss in losses], "-o", color=colour,
            label=sheet.say(removal.name), linewidth=1.4, markersize=3.5,
        )  # fmt: skip
    share, count = Text("removed heads, %"), Text("removed heads")
    if counted:
        axes.locator_params(axis="x", integer=True)
    sheet.finish_curves(axes, count if counted else share, loss)
    return figure


ORDERS = {"given": Text("selected heads"), "importance": Text("least important first")}


def of_ablation(sheet: Sheet, result: AblationResult) -> Iterator[tuple[str, "Figure"]]:
    """Yield the figure of an experiment: the loss increase, also for random heads if compared."""
    rises = [point.rise or point.loss for point in result.points[1:]]
    if result.comparisons:
        rises = [comparison.theirs for comparison in result.comparisons]
    removals = [Removal(ORDERS[result.plan.options.order], _from_zero(result, rises))]
    if result.comparisons:
        seeds = result.plan.options.num_seeds
        name = Text("random other heads, {seeds} seeds", seeds=seeds)
        if result.all_heads:
            name = Text("random order, {seeds} seeds", seeds=seeds)
        random = [comparison.random for comparison in result.comparisons]
        removals.append(Removal(name, _from_zero(result, random)))
    rise = Text("loss increase, in nats per token")
    yield "ablation", ablation(sheet, title(result), removals, rise, counted=not result.all_heads)


def _from_zero(result: AblationResult, rises: list[Interval]) -> list[Point]:
    """Return the points of the experiment with the loss increase instead of the loss."""
    start = Interval(0.0, 0.0, 0.0, rises[0].confidence, rises[0].examples)
    return [
        Point(point.removed, point.share, rise)
        for point, rise in zip(result.points, [start, *rises], strict=True)
    ]
