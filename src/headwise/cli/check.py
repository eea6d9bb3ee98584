"""``headwise check``: find the wrong numbers in a worked example that somebody wrote."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.explain.article import Options, Report

SUMMARY = Text(
    "Find the wrong numbers in a worked example.",
    "找出一篇计算实例里算错的数。",
)

WIDTH = 100
"""Cells in a line where no terminal says otherwise."""

SUFFIXES = {".txt": "text", ".md": "markdown", ".html": "html", ".json": "json"}
"""The format that a file's name asks for where ``--format`` does not."""

FORMATS = tuple(SUFFIXES.values())

_HELP = Text(
    "Reads FILE (Markdown, LaTeX, HTML tables, lists or prints of arrays), takes the input, the "
    "heads and the weights from it or from the options, computes everything again, and lists each "
    "number that is wrong at the precision it is printed at. Exit status: 0 nothing wrong, "
    "1 something wrong, 2 the file cannot be used.",
    "读取 FILE（Markdown、LaTeX、HTML 表格、列表或数组打印），从文中或选项取得输入、头数和权重，"
    "重新计算，并列出每个在其印刷精度上有误的数。退出状态：0 没有错误，1 有错误，2 文件无法使用。",
)

_SAID = {
    "--x": Text("File with X, one row a token.", "X 的文件，每行一个词。"),
    "--heads": Text("Number of heads.", "头数。"),
    "--weights": Text(
        "File with the projections (.safetensors, .pt, .pth), or FILE:prefix.",
        "投影权重文件（.safetensors、.pt、.pth），或 FILE:前缀。",
    ),
    "--mask": Text(
        "full, causal, window:LEFT,RIGHT, or a file of 0 and 1 (1 may attend).",
        "full、causal、window:左,右，或含 0 和 1 的文件（1 表示可见）。",
    ),
    "--scale": Text("Factor on the scores; default 1/sqrt(d_k).", "得分系数；默认 1/sqrt(d_k)。"),
    "--format": Text(
        "How to write it; default by the name of --output, or text.",
        "输出格式；默认由 --output 的文件名决定，否则为 text。",
    ),
    "--output": Text("Write to this file instead of the screen.", "写入此文件而不是屏幕。"),
}


def command(lang: Lang) -> click.Command:
    """The command, in the reader's language."""
    return click.Command(
        "check",
        callback=lambda **given: _run(Asked(**given), lang),
        params=[click.Argument(["file"], type=click.Path(path_type=Path)), *_options(lang)],
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

    @property
    def kind(self) -> str:
        """The format asked for by word, by the output's name, or text."""
        suffix = "" if self.output is None else self.output.suffix.lower()
        return self.format or SUFFIXES.get(suffix, "text")


def _options(lang: Lang) -> list[click.Parameter]:
    kinds: dict[str, click.ParamType[Any]] = {
        "--heads": click.IntRange(min=1),
        "--scale": click.FLOAT,
        "--format": click.Choice(FORMATS),
        "--output": click.Path(path_type=Path),
    }
    return [
        click.Option([name], type=kinds.get(name, click.STRING), help=text.to(lang))
        for name, text in _SAID.items()
    ]


def _run(asked: Asked, lang: Lang) -> int:
    from headwise.cli import FOUND_WRONG
    from headwise.document.files import write
    from headwise.document.plain import clean
    from headwise.explain.article import check, read_article

    article = read_article(asked.file)
    report = check(article, _given(asked), source=clean(asked.file.name))
    text = _text(report, asked, lang)
    if asked.output is None:
        click.echo(text, nl=False)
    else:
        write(asked.output, text)
        click.echo(Text("written: ", "已写入：").to(lang) + clean(str(asked.output)), err=True)
    return FOUND_WRONG if report.findings else 0


def _given(asked: Asked) -> "Options":
    from headwise.explain import weights
    from headwise.explain.article import Options
    from headwise.explain.inputs import read_matrix
    from headwise.explain.masks import mask_of

    return Options(
        x=None if asked.x is None else read_matrix(asked.x).values,
        heads=asked.heads,
        projections=None if asked.weights is None else weights.load(asked.weights),
        scale=asked.scale,
        mask=None if asked.mask is None else mask_of(asked.mask, None),
    )


def _text(report: "Report", asked: Asked, lang: Lang) -> str:
    from headwise.document import html, markdown, terminal
    from headwise.explain.article.report import as_json, document

    if asked.kind == "json":
        return as_json(report)
    made = document(report)
    if asked.kind == "text":
        size = shutil.get_terminal_size((WIDTH, 24))
        screen = asked.output is None and sys.stdout.isatty()
        width = size.columns if screen else WIDTH
        return terminal.render(made, lang, color=screen, width=width)
    return html.render(made, lang) if asked.kind == "html" else markdown.render(made, lang)
