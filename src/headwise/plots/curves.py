"""Curves: the attention at each distance, and the loss as heads are ablated."""

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
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


UNSEEN = 1e-4
"""A share below this is lower than the line is thick."""

TICKS = 9
"""About how many places are named."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of the figure.

    Attributes:
        name: whose it is, such as "L0H2".
        values: at each place; NaN where unknown.
        baseline: whether it is what the others are held against.
    """

    name: Text
    values: Sequence[float]
    baseline: bool = False


def profile(
    sheet: Sheet, title: Text, places: Sequence[str], curves: Sequence[Curve], across: Text
) -> "Figure":
    """The figure: a line a head, and a dashed one for each baseline.

    What a place sums up that lies beyond the others, "< -16", is a mark of its own.

    Args:
        sheet: where it is drawn.
        title: what it shows.
        places: the name of each place, such as "-1".
        curves: up to seven heads, and their baselines.
        across: what the places are.
    """
    figure = sheet.figure(7.5, 4.0, title)
    axes = figure.subplots()
    shown = _reached(curves, len(places))
    ends = [i for i in shown if not _joined(places[i])]
    line = [i for i in shown if _joined(places[i])]
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
    _name(sheet, axes, places, shown)
    axes.set_ylim(0, None)
    axes.grid(axis="y", linewidth=0.4, color="#dddddd")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    sheet.label(axes, across, Text("share of the attention"))
    sheet.quiet(axes)
    axes.legend(frameon=False, prop=sheet.fonts.properties(8), loc="best")
    return figure


def _joined(place: str) -> bool:
    """Whether a place is one of a row, and no sum over all that lie beyond its end."""
    return not place.startswith(("<", ">"))


def _reached(curves: Sequence[Curve], count: int) -> list[int]:
    """The places, without those at either end that no curve reaches."""
    some = [i for i in range(count) if any(curve.values[i] > UNSEEN for curve in curves)]
    return list(range(min(some, default=0), max(some, default=count - 1) + 1))


def _name(sheet: Sheet, axes: "Axes", places: Sequence[str], shown: Sequence[int]) -> None:
    """Name the ends, the middle, and others evenly apart; the sums beyond an end always."""
    middle, step = len(places) // 2, max(1, round(len(shown) / TICKS))
    named = [i for i in shown if (i - middle) % step == 0 and _joined(places[i])]
    ends = [i for i in shown if not _joined(places[i])]
    named = sorted(ends + [i for i in named if all(abs(i - end) > step / 2 for end in ends)])
    axes.set_xticks(named, [places[i] for i in named], fontproperties=sheet.fonts.properties())


@dataclass(frozen=True)
class Removal:
    """One way to choose the heads that go.

    Attributes:
        name: how they are chosen.
        points: the curve, as `headwise.heads.ablation.curve` measures it.
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


RISE = Text("rise of the loss, nats a token")

ORDERS = {"given": Text("these heads, as given"), "importance": Text("least important first")}


def of_ablation(sheet: Sheet, result: AblationResult) -> Iterator[tuple[str, "Figure"]]:
    """The figure of an experiment: the rise of the loss, and that without random heads."""
    rises = [point.rise or point.loss for point in result.points[1:]]
    if result.comparisons:
        rises = [comparison.theirs for comparison in result.comparisons]
    removals = [Removal(ORDERS[result.plan.order], _from_zero(result, rises))]
    if result.comparisons:
        seeds = result.plan.num_seeds
        name = Text("as many random others, {seeds} seeds", seeds=seeds)
        if result.all_heads:
            name = Text("random order, {seeds} seeds", seeds=seeds)
        random = [comparison.random for comparison in result.comparisons]
        removals.append(Removal(name, _from_zero(result, random)))
    counted = not result.all_heads
    yield "ablation", ablation(sheet, title(result), removals, RISE, counted=counted)


def _from_zero(result: AblationResult, rises: list[Interval]) -> list[Point]:
    """The points of the experiment with rises in place of losses, starting at 0."""
    start = Interval(0.0, 0.0, 0.0, rises[0].confidence, rises[0].examples)
    return [
        Point(point.removed, point.share, rise)
        for point, rise in zip(result.points, [start, *rises], strict=True)
    ]
