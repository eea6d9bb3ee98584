"""Create the figures of an inspection or of a corpus run, and write them to a folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headwise.document.text_format import clean
from headwise.errors import BadFile
from headwise.heads.analysis.similarity import distances
from headwise.heads.corpus.checkpoint import Run
from headwise.heads.inspection import Inspection, highlights
from headwise.heads.metrics.distances import BY_DISTANCE
from headwise.heads.names import Head
from headwise.heads.statistics import Statistics
from headwise.lang import Text, Translated, same
from headwise.plots.curves import Curve, profile
from headwise.plots.figure import LINES, Sheet, save
from headwise.plots.heat_maps import heat_map, overview, panels, similarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Named = Iterator[tuple[str, "Figure"]]  # figures with their file names without extension
LINES_OF_KIND = 2  # the most lines for heads that attend to the same kind of token

PARTS = {"": same(""), "encoder": Text("encoder, "), "decoder": Text("decoder, ")}
PARTS |= {"cross": Text("cross-attention, ")}


def of_inspection(sheet: Sheet, seen: Inspection) -> Named:
    """Yield the overview, distance profiles, a heat map of each selected head, and similarity.

    The similarity needs the attention weights of every head of a part.
    """
    yield from _of_statistics(sheet, seen.statistics, seen.loaded.name)
    for head, weights in seen.maps.items():
        rows, columns = seen.sides(head)
        yield f"map-{head}", heat_map(sheet, same(str(head)), weights.tolist(), rows, columns)
    for part in PARTS:
        heads = tuple(head for head in seen.statistics.heads() if head.layer.part == part)
        if len(heads) > 1 and all(head in seen.maps for head in heads):
            tables = torch.stack([seen.maps[head] for head in heads])
            apart = distances(tables.nan_to_num(0.0), ~tables.isnan())
            yield _similarity(sheet, part, heads, (apart + apart.mT) / 2)


def of_run(sheet: Sheet, run: Run) -> Named:
    """Yield the overview, distance profiles and, if heads were named, their similarity."""
    whole = run.gathered.whole()
    yield from _of_statistics(sheet, whole.statistics, str(run.model["name"]))
    for part in PARTS:
        heads, apart = whole.evidence.similarity.distances(part)
        if len(heads) > 1:
            yield _similarity(sheet, part, heads, apart)


def write(figures: Named, folder: Path) -> tuple[Path, ...]:
    """Write figures as PNG and SVG to a folder, which is created if needed.

    Raises:
        BadFile: if the folder cannot be created, or a file cannot be written.
        MissingExtra: if matplotlib is not installed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        name, reason = clean(str(folder)), error.strerror or type(error).__name__
        raise BadFile(
            "figures: cannot create the folder {name}: {reason}; choose another folder",
            name=name,
            reason=reason,
        ) from error
    return tuple(file for name, figure in figures for file in save(figure, folder, name))


def _of_statistics(sheet: Sheet, statistics: Statistics, name: str) -> Named:
    for part, label in PARTS.items():
        if not any(layer.part == part for layer in statistics.layers):
            continue
        title = Text("{name}: {part}all heads (grey: undefined)", name=name, part=label)
        yield _file("overview", part), overview(sheet, title, panels(statistics, part))
        if part != "cross":  # distance is undefined between different texts
            yield _file("distance", part), _profile(sheet, statistics, part)


def _profile(sheet: Sheet, statistics: Statistics, part: str) -> "Figure":
    """Plot the attention by distance of the highlighted heads, or of the first heads if none."""
    facts = [fact for fact in highlights(statistics) if fact.head.layer.part == part]
    kinds = dict.fromkeys(fact.metric.name for fact in facts)
    shown: list[Head] = []
    for kind in kinds:
        shown += [fact.head for fact in facts if fact.metric.name == kind][:LINES_OF_KIND]
    every = [head for head in statistics.heads() if head.layer.part == part]
    shown = (shown or every)[: len(LINES) - 1]
    curves = [Curve(same(str(head)), statistics.profile(BY_DISTANCE, head)) for head in shown]
    flat = statistics.uniform_profile(BY_DISTANCE, shown[0].layer)
    curves.append(Curve(Text("uniform head"), flat, baseline=True))
    across = Text("distance from query to key, in tokens")
    title = Translated(BY_DISTANCE.title.en.capitalize(), BY_DISTANCE.title.zh)
    return profile(sheet, title, BY_DISTANCE.places, curves, across)


def _similarity(
    sheet: Sheet, part: str, heads: tuple[Head, ...], apart: torch.Tensor
) -> tuple[str, "Figure"]:
    title = Text("{part}similarity of heads", part=PARTS[part])
    title = Translated(title.en.capitalize(), title.zh)
    figure = similarity(sheet, title, [str(head) for head in heads], apart)
    return _file("similarity", part), figure


def _file(kind: str, part: str) -> str:
    return f"{kind}-{part}" if part else kind
