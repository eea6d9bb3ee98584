"""``--figures DIR``: what was measured, drawn."""

from collections.abc import Callable
from pathlib import Path

from headwise.cli.output import write_stderr
from headwise.document.plain import clean
from headwise.heads.corpus.blame import called
from headwise.lang import Lang, Text
from headwise.plots.album import Named, write
from headwise.plots.sheet import Sheet


def draw(figures: Callable[[Sheet], Named], folder: Path | None, lang: Lang) -> None:
    """Write the figures, and say where they are; nothing where no folder was named."""
    if folder is None:
        return
    with called("figures", "output"):
        files = write(figures(Sheet.of(lang)), folder)
    said = Text("{num_files} figures in: ", num_files=len(files)).to(lang)
    write_stderr(said + clean(str(folder)))
