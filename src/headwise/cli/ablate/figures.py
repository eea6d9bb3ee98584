"""``--figures DIR``: the loss as the heads go, drawn."""

from pathlib import Path

from headwise.cli.ablate.measured import Measured
from headwise.cli.ablate.report import title
from headwise.document.plain import clean
from headwise.errors import BadFile
from headwise.heads.effect.curve import Point
from headwise.heads.effect.interval import Interval
from headwise.lang import Lang, Text
from headwise.plots.ablation import Removal, ablation
from headwise.plots.album import Named
from headwise.plots.sheet import Sheet

NAME = "ablation"
RISE = Text("rise of the loss, nats a token")

ORDERS = {"given": Text("these heads, as given"), "importance": Text("least important first")}


def check_folder(folder: Path, lang: Lang) -> None:
    """Say that nothing can be drawn, or not there, before the work and not after it.

    Raises:
        BadFile: if the folder is something else, or its name none that the file system takes.
        BadValue, MissingExtra: as `Sheet.of`.
    """
    Sheet.of(lang)
    name = clean(str(folder))
    try:
        other = folder.exists() and not folder.is_dir()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadFile(
            "figures: cannot make the folder {name}: {reason}; choose another place",
            name=name,
            reason=reason,
        ) from error
    if other:
        raise BadFile(
            "figures: expected a folder, got the file {name}; choose another place", name=name
        )


def curves(sheet: Sheet, found: Measured) -> Named:
    """The figure: a line for the heads and one for random ones, each in its interval."""
    removals = [Removal(ORDERS[found.plan.order], _theirs(found))]
    if found.comparisons:
        removals.append(
            Removal(_random(found), _points(found, [c.random for c in found.comparisons]))
        )
    yield NAME, ablation(sheet, title(found), removals, RISE, counted=not found.whole)


def _random(found: Measured) -> Text:
    draws = found.plan.draws
    if found.whole:
        return Text("random order, {draws} seeds", draws=draws)
    return Text("as many random others, {draws} seeds", draws=draws)


def _theirs(found: Measured) -> list[Point]:
    if found.comparisons:
        return _points(found, [each.theirs for each in found.comparisons])
    return _points(found, [point.rise or point.loss for point in found.points[1:]])


def _points(found: Measured, rises: list[Interval]) -> list[Point]:
    """The curve of the rise in place of the loss, from 0 on."""
    nothing = Interval(0.0, 0.0, 0.0, rises[0].confidence, rises[0].examples)
    return [
        Point(point.removed, point.share, rise)
        for point, rise in zip(found.points, [nothing, *rises], strict=True)
    ]
