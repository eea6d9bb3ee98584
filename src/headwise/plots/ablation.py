"""The loss as more and more heads are taken out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.heads.ablation.bootstrap import Interval
from headwise.heads.ablation.curve import Point
from headwise.heads.ablation.experiment.ablation_report import title
from headwise.heads.ablation.experiment.experiment import AblationResult
from headwise.lang import Text
from headwise.plots.sheet import LINES, Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
