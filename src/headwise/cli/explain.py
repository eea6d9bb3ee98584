"""``headwise explain``: the five steps of a multi-head attention with every number."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli import reporting
from headwise.errors import BadValue
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.explain.inputs import Numbers
    from headwise.explain.trace import Projections, Trace

SUMMARY = Text(
    "Show every number of a multi-head attention, step by step.",
    "一步一步展示多头注意力的每个数。",
)

EXAMPLE = ((0.5, 1.1, 0.2, 0.1), (1.0, 1.1, 0.3, 0.2), (1.2, -0.2, 0.1, 0.4))
TOKENS = ("我", "爱", "你")
HEADS = 2
PRECISION = 4
FORMATS = ("text", "markdown", "latex", "html", "json")
INITS = ("xavier_uniform", "xavier_normal", "orthogonal", "torch")


def command(lang: Lang) -> click.Command:
    """The command, in the reader's language."""
    return click.Command(
        "explain",
        callback=lambda **given: _run(Asked(**given), lang),
        params=_options(lang),
        help=f"{SUMMARY.to(lang)}\n\n{_HELP.to(lang)}",
        short_help=SUMMARY.to(lang),
    )


@dataclass(frozen=True)
class Asked:
    """The options as given."""

    x: str | None
    tokens: str | None
    heads: int
    weights: str | None
    seed: int | None
    init: str | None
    mask: str | None
    bias: str | None
    scale: float | None
    format: str | None
    precision: int | None
    head: int | None
    row: int | None
    output: Path | None


_HELP = Text(
    "Without options: 3 tokens, 2 heads, projections that change nothing. Files of numbers are "
    ".csv, .tsv, .npy, .json or .safetensors (file.safetensors:name picks a tensor).",
    "不带选项时：3 个词、2 个头、单位投影。数字文件可为 .csv、.tsv、.npy、.json 或 "
    ".safetensors（file.safetensors:名字 指定张量）。",
)

_SAID = {
    "--x": Text("File with X, one row a token.", "X 的文件，每行一个词。"),
    "--tokens": Text("Labels: a,b,c, or a .json or .txt file.", "词：a,b,c，或 .json、.txt 文件。"),
    "--heads": Text("Number of heads.", "头数。"),
    "--weights": Text(
        "File with the projections (.safetensors, .pt, .pth), or FILE:prefix.",
        "投影权重文件（.safetensors、.pt、.pth），或 FILE:前缀。",
    ),
    "--seed": Text(
        "Draw the projections from this seed; 0 where only --init is given.",
        "用此种子生成投影权重；只给 --init 时为 0。",
    ),
    "--init": Text(
        "How they are drawn; xavier_uniform where only --seed is given.",
        "生成方式；只给 --seed 时为 xavier_uniform。",
    ),
    "--mask": Text(
        "full, causal, window:LEFT,RIGHT, or a file of 0 and 1 (1 may attend).",
        "full、causal、window:左,右，或含 0 和 1 的文件（1 表示可见）。",
    ),
    "--bias": Text("File of numbers added to the scaled scores.", "加到缩放后得分上的数的文件。"),
    "--scale": Text("Factor on the scores; default 1/sqrt(d_k).", "得分系数；默认 1/sqrt(d_k)。"),
    "--precision": Text(
        "Decimals, 0 to 15; default 4, and every digit in JSON.",
        "小数位数，0 到 15；默认 4，JSON 默认全部位数。",
    ),
    "--head": Text("Open one head, from 1.", "只展开一个头，从 1 数。"),
    "--row": Text("The row written out term by term, from 0.", "逐项手算的行，从 0 数。"),
}


def _options(lang: Lang) -> list[click.Parameter]:
    kinds: dict[str, click.ParamType[Any]] = {
        **dict.fromkeys(("--seed", "--precision", "--head", "--row"), click.INT),
        "--scale": click.FLOAT,
        "--heads": click.IntRange(min=1),
        "--init": click.Choice(INITS),
    }
    own: list[click.Parameter] = [
        click.Option(
            [name],
            type=kinds.get(name, click.STRING),
            default=HEADS if name == "--heads" else None,
            show_default=name == "--heads",
            help=text.to(lang),
        )
        for name, text in _SAID.items()
    ]
    return own + reporting.options(lang, FORMATS)


def _run(asked: Asked, lang: Lang) -> int:
    from headwise.explain.as_json import as_json
    from headwise.explain.steps import check, steps

    read = (asked.x, asked.tokens, asked.weights, asked.mask, asked.bias)
    destination = reporting.Destination(asked.format, asked.output, lang, FORMATS, read)
    destination.check()
    traced = _trace(asked)
    precision = PRECISION if asked.precision is None else asked.precision
    check(traced, asked.head, asked.row, precision)
    if destination.kind == "json" and asked.row is not None:
        raise BadValue(
            f"row: JSON holds every row, got {asked.row}; leave out --row",
            f"row：JSON 含有每一行，收到 {asked.row}；请去掉 --row",
        )
    destination.write(
        lambda: steps(traced, head=asked.head, row=asked.row, precision=precision),
        lambda: as_json(traced, head=asked.head, precision=asked.precision),
    )
    return 0


def _trace(asked: Asked) -> "Trace":
    from headwise.explain.inputs import read_tokens
    from headwise.explain.masks import mask_of
    from headwise.explain.trace import trace

    given = _numbers(asked.x)
    return trace(
        given.values,
        asked.heads,
        projections=_projections(asked, given.values.shape[1]),
        tokens=given.tokens if asked.tokens is None else read_tokens(asked.tokens),
        mask=mask_of(asked.mask, asked.bias, asked.heads, len(given.values)),
        scale=asked.scale,
    )


def _numbers(word: str | None) -> "Numbers":
    import torch

    from headwise.explain.inputs import Numbers, read_matrix

    if word is not None:
        return read_matrix(word)
    return Numbers(torch.tensor(EXAMPLE, dtype=torch.float64), TOKENS)


def _projections(asked: Asked, embed_dim: int) -> "Projections":
    from headwise.explain import weights
    from headwise.explain.trace import Projections

    drawn = asked.seed is not None or asked.init is not None
    if asked.weights is not None and drawn:
        raise BadValue(
            "weights: expected a file or a seed, got both; leave out --weights, or --seed and "
            "--init",
            "weights：应在文件与种子中选一个，收到两者；请去掉 --weights，或去掉 --seed 和 --init",
        )
    if asked.weights is not None:
        return weights.load(asked.weights)
    if drawn:
        return weights.seeded(
            embed_dim, asked.heads, asked.seed or 0, asked.init or "xavier_uniform"
        )
    return Projections.identity(embed_dim)
