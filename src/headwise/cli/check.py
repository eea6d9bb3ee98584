"""``headwise check``: find the wrong numbers in a worked example that somebody wrote."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.reporting import Destination, options
from headwise.errors import BadFile
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.explain.article import Options, Report
    from headwise.masks import Mask

SUMMARY = Text(
    "Find the wrong numbers in a worked example.",
    "找出一篇计算实例里算错的数。",
)

_HELP = Text(
    "Reads FILE, or - for the standard input (Markdown, LaTeX, HTML tables, lists or prints of "
    "arrays), takes the input, the heads and the weights from it or from the options, computes "
    "everything again, and lists each "
    "number that is wrong at the precision it is printed at. Exit status: 0 nothing wrong, "
    "1 something wrong, 2 the file cannot be used.",
    "读取 FILE，- 表示标准输入（Markdown、LaTeX、HTML 表格、列表或数组打印），"
    "从文中或选项取得输入、头数和权重，"
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
    from headwise.cli import FOUND_WRONG
    from headwise.explain.article import check, read_article
    from headwise.explain.article.report import as_json, document
    from headwise.explain.article.source import title

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
        f"{report.source}: nothing could be checked: no printed number stands for a quantity of "
        f"this computation, {left} could not be matched; check --x, --heads and --weights, or "
        'name each array, as in "softmax = [..]"',
        f"{report.source}：没有可检查的数：没有印出的数对应本计算中的量，{left} 个无法对应；"
        "请检查 --x、--heads 和 --weights，或给每个数组命名，例如“softmax = [..]”",
    )


def _given(asked: Asked) -> "Options":
    from headwise.explain import weights
    from headwise.explain.article import Options
    from headwise.explain.inputs import read_matrix
    from headwise.explain.masks import mask_of

    def mask(heads: int, length: int) -> "Mask":
        return mask_of(asked.mask, None, heads, length)

    return Options(
        x=None if asked.x is None else read_matrix(asked.x).values,
        heads=asked.heads,
        projections=None if asked.weights is None else weights.load(asked.weights),
        scale=asked.scale,
        mask=None if asked.mask is None else mask,
    )
