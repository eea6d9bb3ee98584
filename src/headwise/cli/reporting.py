"""The options ``--format``, ``--output`` and ``--figures``, shared by all commands."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.output import stdout_is_terminal, write_stderr, write_stdout
from headwise.document.files import check_place, write
from headwise.document.text_format import clean
from headwise.errors import BadFile
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.document import Document
    from headwise.plots.album import Named
    from headwise.plots.figure import Sheet


WIDTH = 100  # cells in a line where no terminal says otherwise

SUFFIXES = {".txt": "text", ".md": "markdown", ".tex": "latex"}
SUFFIXES |= {f".{name}": name for name in ("html", "json", "csv", "parquet")}
"""The format that a file's name asks for where ``--format`` does not."""

FORMATS = ("text", "markdown", "html", "json")
"""What every command can write; `explain` writes LaTeX as well."""

TABLES = ("csv", "parquet", "github")
"""What a command with a table can write as well; "github" is a line for each row."""

PATH = click.Path(path_type=Path)

_FORMAT = Text("How to write it; default by the name of --output, or text.")
_OUTPUT = Text("Write to this file instead of the screen.")


def options(lang: Lang, formats: tuple[str, ...] = FORMATS) -> list[click.Parameter]:
    """``--format`` and ``--output``, in the reader's language."""
    return [
        click.Option(["--format"], type=click.Choice(formats), help=_FORMAT.to(lang)),
        click.Option(["--output"], type=PATH, help=_OUTPUT.to(lang)),
    ]


def build_command(
    name: str,
    run: Callable[[SimpleNamespace, Lang], int],
    parameters: Sequence[click.Parameter],
    lang: Lang,
    summary: Text,
    *paragraphs: Text,
) -> click.Command:
    """A command whose help is the paragraphs; ``run`` takes the values of its parameters."""
    return click.Command(
        name,
        callback=lambda **values: run(SimpleNamespace(**values), lang),
        params=list(parameters),
        help="\n\n".join(text.to(lang) for text in paragraphs),
        short_help=summary.to(lang),
    )


def click_options(
    texts: Mapping[str, Text], kinds: Mapping[str, Mapping[str, Any]], lang: Lang
) -> list[click.Parameter]:
    """Options in the order of their help texts; ``kinds`` has what else `click.Option` takes."""
    return [
        click.Option([name], help=text.to(lang), **kinds.get(name, {}))
        for name, text in texts.items()
    ]


@dataclass(frozen=True)
class Destination:
    """Where a report goes, a file or None for the screen, and in which format and language.

    ``formats`` are those that the command can write, ``inputs`` are as given on the command line.
    """

    format: str | None
    output: Path | None
    lang: Lang
    formats: tuple[str, ...] = FORMATS
    inputs: tuple[str | Path | None, ...] = ()

    @property
    def kind(self) -> str:
        """The format: as given, else by the output's name, else text."""
        suffix = "" if self.output is None else self.output.suffix.lower()
        named = SUFFIXES.get(suffix, "text")
        return self.format or (named if named in self.formats else "text")

    def __post_init__(self) -> None:
        """Raise `BadFile`, before the work starts, for an output that cannot be written."""
        if self.output is None and self.kind == "parquet":
            raise BadFile(
                "format: parquet is not for the screen; give a file, as in --output heads.parquet"
            )
        if self.output is not None:
            names = [str(name) for name in self.inputs if name is not None]
            files = [name.rpartition(":")[0] for name in names]  # a tensor of a file: file:name
            check_place(self.output, map(Path, names + files))

    def write(
        self,
        document: Callable[[], "Document"],
        data: Callable[[], str],
        table: Callable[[str], str | bytes] | None = None,
    ) -> None:
        """Write the report: the document rendered, the data as JSON, or a table in one of `TABLES`.

        Raises:
            BadFile: if it cannot be written; nothing is half-written then.
        """
        content: str | bytes
        if table is not None and self.kind in TABLES:
            content = table(self.kind)
        else:
            content = data() if self.kind == "json" else self._rendered(document())
        if self.output is None:
            write_stdout(str(content))
            return
        if isinstance(content, str) and not content.endswith("\n"):
            content += "\n"
        write(self.output, content)
        write_stderr(Text("written: ").to(self.lang) + clean(str(self.output)))

    def _rendered(self, document: "Document") -> str:
        from headwise.document import html, latex, markdown, terminal

        if self.kind == "text":
            seen = self.output is None and stdout_is_terminal()
            width = shutil.get_terminal_size((WIDTH, 24)).columns if seen else WIDTH
            return terminal.render(document, self.lang, color=seen, width=width)
        writers = {"markdown": markdown.render, "latex": latex.render, "html": html.render}
        return writers[self.kind](document, self.lang)


def check_figures(folder: Path | None, lang: Lang) -> None:
    """Raise, before the measurement, the errors of drawing figures and of writing them."""
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
    from headwise.heads.corpus.checkpoint import error_context
    from headwise.plots import album
    from headwise.plots.figure import Sheet

    with error_context("figures", "output"):
        files = album.write(figures(Sheet.of(lang)), folder)
    count = Text("{num_files} figures in: ", num_files=len(files))
    write_stderr(count.to(lang) + clean(str(folder)))
