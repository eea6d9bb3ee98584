"""``--figures DIR``: figures as PNG and SVG files."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli.output import write_stderr
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.plots.album import Named
    from headwise.plots.sheet import Sheet


def check_figures(folder: Path | None, lang: Lang) -> None:
    """Check before the measurement that figures can be drawn and written.

    Raises:
        BadFile: if the folder cannot be written into.
        BadValue, MissingExtra: as `headwise.plots.sheet.Sheet.of`.
    """
    if folder is None:
        return
    from headwise.heads.corpus.checkpoint import check_folder
    from headwise.plots.sheet import Sheet

    Sheet.of(lang)
    check_folder("figures", folder)


def write_figures(figures: Callable[["Sheet"], "Named"], folder: Path | None, lang: Lang) -> None:
    """Write the figures into the folder and log its name; nothing if it is None."""
    if folder is None:
        return
    from headwise.document.plain import clean
    from headwise.heads.corpus.checkpoint import error_context
    from headwise.plots.album import write
    from headwise.plots.sheet import Sheet

    with error_context("figures", "output"):
        files = write(figures(Sheet.of(lang)), folder)
    write_stderr(
        Text("{num_files} figures in: ", num_files=len(files)).to(lang) + clean(str(folder))
    )
