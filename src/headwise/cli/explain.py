"""``headwise explain``: the five steps of a multi-head attention with every number."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli import reporting
from headwise.errors import BadValue
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.explain.array_files import TokenArray
    from headwise.explain.trace import Projections, Trace

SUMMARY = Text("Show every number of a multi-head attention, step by step.")

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
        callback=lambda **given: _run(ExplainOptions(**given), lang),
        params=_options(lang),
        help=f"{SUMMARY.to(lang)}\n\n{_HELP.to(lang)}",
        short_help=SUMMARY.to(lang),
    )


@dataclass(frozen=True)
class ExplainOptions:
    """The values of the options."""

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
    "Without options: 3 tokens, 2 heads, projections that change nothing. Files of "
    "numbers are .csv, .tsv, .npy, .json or .safetensors (file.safetensors:name picks "
    "a tensor)."
)

_HELP_TEXTS = {
    "--x": Text("File with X, one row a token."),
    "--tokens": Text("Labels: a,b,c, or a .json or .txt file."),
    "--heads": Text("Number of heads."),
    "--weights": Text("File with the projections (.safetensors, .pt, .pth), or FILE:prefix."),
    "--seed": Text("Draw the projections from this seed; 0 where only --init is given."),
    "--init": Text("How they are drawn; xavier_uniform where only --seed is given."),
    "--mask": Text("full, causal, window:LEFT,RIGHT, or a file of 0 and 1 (1 may attend)."),
    "--bias": Text("File of numbers added to the scaled scores."),
    "--scale": Text("Factor on the scores; default 1/sqrt(d_k)."),
    "--precision": Text("Decimals, 0 to 15; default 4, and every digit in JSON."),
    "--head": Text("Open one head, from 1."),
    "--row": Text("The row written out term by term, from 0."),
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
        for name, text in _HELP_TEXTS.items()
    ]
    return own + reporting.options(lang, FORMATS)


def _run(options: ExplainOptions, lang: Lang) -> int:
    from headwise.explain.steps import steps
    from headwise.explain.trace import check_ranges
    from headwise.explain.trace_json import as_json

    read = (options.x, options.tokens, options.weights, options.mask, options.bias)
    destination = reporting.Destination(options.format, options.output, lang, FORMATS, read)
    destination.check()
    traced = _trace(options)
    precision = PRECISION if options.precision is None else options.precision
    check_ranges(traced, options.head, options.row, precision)
    if destination.kind == "json" and options.row is not None:
        raise BadValue("row: JSON holds every row, got {row}; leave out --row", row=options.row)
    destination.write(
        lambda: steps(traced, head=options.head, row=options.row, precision=precision),
        lambda: as_json(traced, head=options.head, precision=options.precision),
    )
    return 0


def _trace(options: ExplainOptions) -> "Trace":
    from headwise.explain.array_files import read_tokens
    from headwise.explain.call_options import parse_mask
    from headwise.explain.trace import trace

    given = _numbers(options.x)
    return trace(
        given.values,
        options.heads,
        projections=_projections(options, given.values.shape[1]),
        tokens=given.tokens if options.tokens is None else read_tokens(options.tokens),
        mask=parse_mask(options.mask, options.bias, options.heads, len(given.values)),
        scale=options.scale,
    )


def _numbers(word: str | None) -> "TokenArray":
    import torch

    from headwise.explain.array_files import TokenArray, read_matrix

    if word is not None:
        return read_matrix(word)
    return TokenArray(torch.tensor(EXAMPLE, dtype=torch.float64), TOKENS)


def _projections(options: ExplainOptions, embed_dim: int) -> "Projections":
    from headwise.explain.call_options import load_projections, seeded_projections
    from headwise.explain.trace import Projections

    drawn = options.seed is not None or options.init is not None
    if options.weights is not None and drawn:
        raise BadValue(
            "weights: expected a file or a seed, got both; leave out --weights, or "
            "--seed and --init"
        )
    if options.weights is not None:
        return load_projections(options.weights)
    if drawn:
        return seeded_projections(
            embed_dim, options.heads, options.seed or 0, options.init or "xavier_uniform"
        )
    return Projections.identity(embed_dim)
