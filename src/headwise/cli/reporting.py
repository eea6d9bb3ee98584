"""The options ``--format``, ``--output`` and ``--figures``, shared by all commands."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwise.cli.output import stdout_is_terminal, write_stderr, write_stdout
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.document import Document
    from headwise.plots.album import Named
    from headwise.plots.figure import Sheet


WIDTH = 100
"""Cells in a line where no terminal says otherwise."""

SUFFIXES = {
    ".txt": "text",
    ".md": "markdown",
    ".tex": "latex",
    ".html": "html",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
"""The format that a file's name asks for where ``--format`` does not."""

FORMATS = ("text", "markdown", "html", "json")
"""What every word can write; `explain` writes LaTeX as well."""

TABLES = ("csv", "parquet")
"""What a word with a table of numbers can write as well."""

_FORMAT = Text("How to write it; default by the name of --output, or text.")
_OUTPUT = Text("Write to this file instead of the screen.")


def options(lang: Lang, formats: tuple[str, ...] = FORMATS) -> list[click.Parameter]:
    """The two options, in the reader's language."""
    return [
        click.Option(["--format"], type=click.Choice(formats), help=_FORMAT.to(lang)),
        click.Option(["--output"], type=click.Path(path_type=Path), help=_OUTPUT.to(lang)),
    ]


@dataclass(frozen=True)
class Destination:
    """Where a report goes and how it is written.

    Attributes:
        format: as given, or None.
        output: the file, or None for the screen.
        lang: the reader's language.
        formats: what the word can write.
        inputs: the files that are read, as the words of the command line name them.
    """

    format: str | None
    output: Path | None
    lang: Lang
    formats: tuple[str, ...] = FORMATS
    inputs: tuple[str | Path | None, ...] = ()

    @property
    def kind(self) -> str:
        """The format asked for by word, by the output's name, or text."""
        suffix = "" if self.output is None else self.output.suffix.lower()
        named = SUFFIXES.get(suffix, "text")
        return self.format or (named if named in self.formats else "text")

    def check(self) -> None:
        """Say at once, and not after a minute's work, that the output cannot be where it should.

        Raises:
            BadFile: if nothing can be written there, it is one of the inputs, or a binary format
                is to go to the screen.
        """
        from headwise.document.files import check_place
        from headwise.errors import BadFile

        if self.output is None and self.kind == "parquet":
            raise BadFile(
                "format: parquet is not for the screen; give a file, as in --output heads.parquet"
            )
        if self.output is not None:
            given = [str(word) for word in self.inputs if word is not None]
            files = [word.rpartition(":")[0] for word in given]  # a tensor of a file: file:name
            check_place(self.output, map(Path, given + files))

    def write(
        self,
        document: Callable[[], "Document"],
        data: Callable[[], str],
        table: Callable[[str], str | bytes] | None = None,
    ) -> None:
        """Write the report: the document rendered, the data as JSON, or the table.

        Args:
            document: for people.
            data: as JSON.
            table: in one of `TABLES`, for a word that has one.

        Raises:
            BadFile: if it cannot be written; nothing is half-written then.
        """
        from headwise.document.files import write
        from headwise.document.text_format import clean

        content: str | bytes
        if table is not None and self.kind in TABLES:
            content = table(self.kind)
        else:
            content = data() if self.kind == "json" else self._rendered(document())
        if self.output is None:
            write_stdout(str(content))
            return
        whole = isinstance(content, bytes) or content.endswith("\n")
        write(self.output, content if whole else f"{content!s}\n")
        label = Text("written: ").to(self.lang)
        write_stderr(label + clean(str(self.output)))

    def _rendered(self, document: "Document") -> str:
        from headwise.document import html, latex, markdown, terminal

        if self.kind == "text":
            seen = self.output is None and stdout_is_terminal()
            width = shutil.get_terminal_size((WIDTH, 24)).columns if seen else WIDTH
            return terminal.render(document, self.lang, color=seen, width=width)
        writers = {"markdown": markdown.render, "latex": latex.render, "html": html.render}
        return writers[self.kind](document, self.lang)


def check_figures(folder: Path | None, lang: Lang) -> None:
    """Check before the measurement that figures can be drawn and written.

    Raises:
        BadFile: if the folder cannot be written into.
        BadValue, MissingExtra: as `headwise.plots.figure.Sheet.of`.
    """
    if folder is None:
        return
    from headwise.heads.corpus.checkpoint import check_folder
    from headwise.plots.figure import Sheet

    Sheet.of(lang)
    check_folder("figures", folder)


def write_figures(figures: Callable[["Sheet"], "Named"], folder: Path | None, lang: Lang) -> None:
    """Write the figures into the folder and log its name; nothing if it is None."""
    if folder is None:
        return
    from headwise.document.text_format import clean
    from headwise.heads.corpus.checkpoint import error_context
    from headwise.plots.album import write
    from headwise.plots.figure import Sheet

    with error_context("figures", "output"):
        files = write(figures(Sheet.of(lang)), folder)
    write_stderr(
        Text("{num_files} figures in: ", num_files=len(files)).to(lang) + clean(str(folder))
    )
