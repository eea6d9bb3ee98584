"""``headwise check``: find the wrong numbers in a worked example that somebody wrote."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.reporting import Destination, options
from headwise.errors import BadFile
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.check import Options, Report
    from headwise.masks import Mask

SUMMARY = Text("Find the wrong numbers in a worked example.")

_HELP = Text(
    "Reads FILE, or - for the standard input (Markdown, LaTeX, HTML tables, lists or "
    "prints of arrays), takes the input, the heads and the weights from it or from the "
    "options, computes everything again, and lists each number that is wrong at the "
    "precision it is printed at. Exit status: 0 nothing wrong, 1 something wrong, 2 "
    "the file cannot be used."
)

_SAID = {
    "--x": Text("File with X, one row a token."),
    "--heads": Text("Number of heads."),
    "--weights": Text("File with the projections (.safetensors, .pt, .pth), or FILE:prefix."),
    "--mask": Text("full, causal, window:LEFT,RIGHT, or a file of 0 and 1 (1 may attend)."),
    "--scale": Text("Factor on the scores; default 1/sqrt(d_k)."),
}


_FILE = click.Argument(["file"], type=click.Path(path_type=Path))


def command(lang: Lang) -> click.Command:
    """The command, in the reader's language."""
    return click.Command(
        "check",
        callback=lambda **given: _run(Asked(**given), lang),
        params=[
            click.Argument(["file"], type=click.Path(path_type=Path)),
            *_options(lang),
            *options(lang),
        ],
        help=f"{SUMMARY.to(lang)}\n\n{_HELP.to(lang)}",
        short_help=SUMMARY.to(lang),
    )


@dataclass(frozen=True)
class Asked:
    """The arguments as given."""

    file: Path
    x: str | None
    heads: int | None
    weights: str | None
    mask: str | None
    scale: float | None
    format: str | None
    output: Path | None


def _options(lang: Lang) -> list[click.Parameter]:
    kinds: dict[str, click.ParamType[Any]] = {
        "--heads": click.IntRange(min=1),
        "--scale": click.FLOAT,
    }
    return [
        click.Option([name], type=kinds.get(name, click.STRING), help=text.to(lang))
        for name, text in _SAID.items()
    ]


def _run(asked: Asked, lang: Lang) -> int:
    from headwise.check import check, read_article
    from headwise.check.report import as_json, document
    from headwise.check.article_lines import title
    from headwise.cli import FOUND_WRONG

    read = (asked.file, asked.x, asked.weights, asked.mask)
    destination = Destination(asked.format, asked.output, lang, inputs=read)
    destination.check()
    article = read_article(asked.file)
    report = check(article, _given(asked), source=title(asked.file))
    if not report.checked and not report.findings:
        raise _nothing(report)
    destination.write(lambda: document(report), lambda: as_json(report))
    return FOUND_WRONG if report.findings else 0


def _nothing(report: "Report") -> BadFile:
    left = report.open
    return BadFile(
        "{source}: nothing could be checked: no printed number stands for a quantity of "
        "this computation, {left} could not be matched; check --x, --heads and "
        '--weights, or name each array, as in "softmax = [..]"',
        source=report.source,
        left=left,
    )


def _given(asked: Asked) -> "Options":
    from headwise.check import Options
    from headwise.explain import projection_files
    from headwise.explain.array_files import read_matrix
    from headwise.explain.mask_option import mask_of

    def mask(heads: int, length: int) -> "Mask":
        return mask_of(asked.mask, None, heads, length)

    return Options(
        x=None if asked.x is None else read_matrix(asked.x).values,
        heads=asked.heads,
        projections=None if asked.weights is None else weights.load(asked.weights),
        scale=asked.scale,
        mask=None if asked.mask is None else mask,
    )
