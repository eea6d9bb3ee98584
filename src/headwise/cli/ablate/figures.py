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
RISE = Text("rise of the loss, nats a token", "损失上升，奈特每词元")

ORDERS = {
    "given": Text("these heads, as given", "这些头，按给出的顺序"),
    "importance": Text("least important first", "最不重要者先移除"),
}


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
            f"figures: cannot make the folder {name}: {reason}; choose another place",
            f"figures：无法建立文件夹 {name}：{reason}；请换一个位置",
        ) from error
    if other:
        raise BadFile(
            f"figures: expected a folder, got the file {name}; choose another place",
            f"figures：应为文件夹，{name} 是文件；请换一个位置",
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
        return Text(f"random order, {draws} seeds", f"随机顺序，{draws} 个种子")
    return Text(f"as many random others, {draws} seeds", f"同样多的随机其他头，{draws} 个种子")


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
