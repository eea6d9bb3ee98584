"""``headwise explain``: show the five steps of a multi-head attention with every number."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.output import notifier
from headwise.cli.reporting import Destination, build_command, click_options, options
from headwise.errors import BadValue
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.explain.array_files import Notify, TokenArray
    from headwise.explain.projections import Projections
    from headwise.explain.trace import Trace

SUMMARY = Text("Show every number of a multi-head attention, step by step.")

EXAMPLE = ((0.5, 1.1, 0.2, 0.1), (1.0, 1.1, 0.3, 0.2), (1.2, -0.2, 0.1, 0.4))
TOKENS = ("我", "爱", "你")
HEADS, PRECISION = 2, 4
FORMATS = ("text", "markdown", "latex", "html", "json")
INITS = ("xavier_uniform", "xavier_normal", "orthogonal", "torch")


def command(lang: Lang) -> click.Command:
    """Return the command with its help in the given language."""
    parameters = [*click_options(OPTION_TEXTS, _KINDS, lang), *options(lang, FORMATS)]
    return build_command("explain", _run, parameters, lang, SUMMARY, SUMMARY, _HELP)


_HELP = Text(
    "Without options, the example has 3 tokens, 2 heads and identity projections. Arrays are read "
    "from .csv, .tsv, .npy, .json or .safetensors files, or from an article such as .md, .ipynb or "
    ".docx; FILE:name selects an array."
)

OPTION_TEXTS = {
    "--x": Text("File with the input X, one row per token."),
    "--tokens": Text("Labels of the tokens: a,b,c, or a .json or .txt file."),
    "--kv": Text("File with the input of the keys and values (cross-attention), one row per key."),
    "--key-tokens": Text("Labels of the keys; requires --kv."),
    "--heads": Text("Number of heads."),
    "--weights": Text(
        "File with the projections (.safetensors, .pt, .npz, .json, .csv, an article), "
        "FILE:prefix, or WQ.csv,WK.csv,WV.csv,WO.csv."
    ),
    "--seed": Text("Seed of random projections; default 0 with --init."),
    "--init": Text("Distribution of random projections; default xavier_uniform with --seed."),
    "--mask": Text("full, causal, window:LEFT,RIGHT, or a file of 0 and 1 (1 = may attend)."),
    "--bias": Text("File with numbers to add to the scaled scores."),
    "--position": Text(
        "sinusoidal, rotary, rotary:neighbours, alibi, shaw:FILE (one vector per distance) or "
        "t5:FILE (one bias per bucket)."
    ),
    "--scale": Text("Factor of the scores; default 1/sqrt(d_k)."),
    "--precision": Text("Number of decimals, 0 to 15; default 4, but all digits in JSON."),
    "--head": Text("Show only this head, counted from 1."),
    "--row": Text("Write out this row term by term, counted from 0."),
}


_KINDS: dict[str, dict[str, Any]] = {
    **{key: {"type": click.INT} for key in ("--seed", "--precision", "--head", "--row")},
    "--scale": {"type": click.FLOAT},
    "--heads": {"type": click.IntRange(min=1), "default": HEADS, "show_default": True},
    "--init": {"type": click.Choice(INITS)},
}


def _run(values: SimpleNamespace, lang: Lang) -> int:
    from headwise.explain.steps import steps
    from headwise.explain.trace import as_json, check_ranges

    inputs = (values.x, values.tokens, values.weights, values.mask, values.bias, values.kv)
    destination = Destination(values.format, values.output, lang, FORMATS, inputs)
    traced = _trace(values, notifier(lang))
    precision = PRECISION if values.precision is None else values.precision
    check_ranges(traced, values.head, values.row, precision)
    if destination.kind == "json" and values.row is not None:
        raise BadValue("row: JSON contains every row, got {row}; leave out --row", row=values.row)
    destination.write(
        lambda: steps(traced, head=values.head, row=values.row, precision=precision),
        lambda: as_json(traced, head=values.head, precision=values.precision),
    )
    return 0


def _trace(values: SimpleNamespace, notify: "Notify") -> "Trace":
    import torch

    from headwise.explain.array_files import TokenArray, read_matrix, read_tokens
    from headwise.explain.call_options import parse_mask, parse_position
    from headwise.explain.trace import trace

    if values.x is not None:
        x = read_matrix(values.x, notify=notify)
    else:
        x = TokenArray(torch.tensor(EXAMPLE, dtype=torch.float64), TOKENS)
    kv = _keys(values, notify)
    sizes = (len(x.values), None if kv is None else len(kv.values))
    weights = _projections(values, x, kv, notify)
    position = values.position
    return trace(
        x.values,
        values.heads,
        projections=weights,
        tokens=x.tokens if values.tokens is None else read_tokens(values.tokens),
        mask=parse_mask(values.mask, values.bias, values.heads, *sizes, notify),
        scale=values.scale,
        kv=kv,
        position=position and parse_position(position, values.heads, weights, notify),
    )


def _keys(values: SimpleNamespace, notify: "Notify") -> "TokenArray | None":
    """Read the input of the keys and values; None for self-attention."""
    from headwise.explain.array_files import TokenArray, read_matrix, read_tokens

    if values.kv is None:
        if values.key_tokens is not None:
            raise BadValue("key-tokens: expected --kv as well, got none; use --tokens")
        return None
    kv = read_matrix(values.kv, "kv", notify)
    tokens = kv.tokens if values.key_tokens is None else read_tokens(values.key_tokens)
    if tokens is not None and len(tokens) != len(kv.values):
        raise BadValue(
            "key-tokens: expected {expected}, one for each row of --kv, got {got}",
            expected=len(kv.values),
            got=len(tokens),
        )
    return TokenArray(kv.values, tokens)


def _projections(
    values: SimpleNamespace, x: "TokenArray", kv: "TokenArray | None", notify: "Notify"
) -> "Projections":
    from headwise.explain.call_options import seeded_projections
    from headwise.explain.projections import Projections
    from headwise.explain.weights import load_projections

    embed_dim, kv_dim = (array.values.shape[1] for array in (x, x if kv is None else kv))
    seeded = values.seed is not None or values.init is not None
    if values.weights is not None and seeded:
        raise BadValue(
            "weights: expected a file or a seed, got both; leave out --weights, or "
            "--seed and --init"
        )
    if values.weights is not None:
        return load_projections(values.weights, heads=values.heads, notify=notify)
    if seeded:
        init = values.init or "xavier_uniform"
        return seeded_projections(embed_dim, values.heads, values.seed or 0, init, kv_dim)
    return Projections.identity(embed_dim)
