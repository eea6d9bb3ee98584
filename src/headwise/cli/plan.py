"""``headwise plan``: what would run an attention, why not the others, and what it costs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli import reporting
from headwise.lang import Lang, Text, same

if TYPE_CHECKING:
    from headwise.document import Document
    from headwise.planning import Plan
    from headwise.positions import Position

SUMMARY = Text("Say what would run an attention, why not the others, and what it costs.")

HELP = Text(
    "Say what would run an attention, why not the others, and what it costs. Nothing is "
    'computed.\n\n    \n    headwise plan --mask "causal() & window(511, 0)" --length '
    "131072\n    headwise plan --length 4096 --heads 32 --kv-heads 8 --need "
    "weights\n    "
)

LONGEST = 2**18
MOST = 4096
"""Samples, heads, and numbers of a head."""

HEADS = 8
HEAD_DIM = 64
DTYPES = ("float32", "float64", "bfloat16", "float16")
NEEDS = ("weights", "logsumexp", "entropy", "received", "distance", "largest")
"""`headwise.call.NEEDS`, which would load torch."""
Shapes = dict[str, tuple[int, int, int, int]]
POSITIONS = ("none", "alibi", "rotary", "shaw", "t5", "transformer_xl")

_SAID = {
    "--mask": Text("The mask, as `headwise show` takes it."),
    "--length": Text("How many keys."),
    "--queries": Text("How many queries; default as many as keys."),
    "--heads": Text("Query heads; default what the mask holds, or {heads}.", heads=HEADS),
    "--kv-heads": Text("Key/value heads; default as many as query heads."),
    "--head-dim": Text("Numbers of a head."),
    "--batch": Text("Samples; default what the mask holds, or 1."),
    "--dtype": Text("Type of the numbers."),
    "--need": Text("What else is returned; may be repeated."),
    "--position": Text("Position encoding."),
    "--train": Text("A backward pass will follow."),
    "--engine": Text("The engine; auto takes the first that can."),
}


def command(lang: Lang) -> click.Command:
    """The word ``plan`` in the reader's language."""
    return click.Command(
        "plan",
        callback=lambda **given: _run(PlanOptions(**given), lang),
        params=_options(lang),
        help=HELP.to(lang),
        short_help=SUMMARY.to(lang),
    )


@dataclass(frozen=True)
class PlanOptions:
    """The values of the options."""

    mask: str
    length: int
    queries: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int
    batch: int | None
    dtype: str
    need: tuple[str, ...]
    position: str
    train: bool
    engine: str
    format: str | None
    output: Path | None


def _options(lang: Lang) -> list[click.Parameter]:
    length, size = click.IntRange(1, LONGEST), click.IntRange(1, MOST)
    kinds: dict[str, dict[str, Any]] = {
        "--mask": {"default": "full()", "show_default": True},
        "--length": {"type": length, "required": True},
        "--queries": {"type": length},
        "--heads": {"type": size},
        "--kv-heads": {"type": size},
        "--head-dim": {"type": size, "default": HEAD_DIM, "show_default": True},
        "--batch": {"type": size},
        "--dtype": {"type": click.Choice(DTYPES), "default": DTYPES[0], "show_default": True},
        "--need": {"type": click.Choice(NEEDS), "multiple": True},
        "--position": {"type": click.Choice(POSITIONS), "default": "none", "show_default": True},
        "--train": {"is_flag": True},
        "--engine": {"default": "auto", "show_default": True},
    }
    own: list[click.Parameter] = [
        click.Option([name], help=text.to(lang), **kinds.get(name, {}))
        for name, text in _SAID.items()
    ]
    return own + reporting.options(lang)


def _run(options: PlanOptions, lang: Lang) -> int:
    destination = reporting.Destination(options.format, options.output, lang)
    destination.check()
    made, shapes = _made(options)
    destination.write(
        lambda: _document(made, options, shapes), lambda: _as_json(made, options, shapes)
    )
    return 0


def _made(options: PlanOptions) -> "tuple[Plan, Shapes]":
    """Plan with tensors that share one number, so that no length needs memory."""
    import torch

    from headwise.masks.expression import parse
    from headwise.planning import plan

    mask = parse(options.mask)
    held = mask.required_sizes()
    batch, heads = options.batch or held.get("B", 1), options.heads or _heads(held)
    queries = options.queries or held.get("Lq", options.length)
    shapes: Shapes = {
        "q": (batch, heads, queries, options.head_dim),
        "k": (batch, options.kv_heads or heads, options.length, options.head_dim),
        "v": (batch, options.kv_heads or heads, options.length, options.head_dim),
    }
    number = torch.zeros((), dtype=getattr(torch, options.dtype), requires_grad=options.train)
    with torch.set_grad_enabled(options.train):
        made = plan(
            *(number.expand(shape) for shape in shapes.values()),
            mask=mask,
            position=_position(options.position, heads, options.head_dim),
            need=options.need,
            engine=options.engine,
        )
    return made, shapes


def _heads(held: dict[str, int]) -> int:
    """As many heads as the mask has rules for; one rule serves all."""
    return held["H"] if held.get("H", 1) > 1 else HEADS


def _position(name: str, heads: int, dim: int) -> "Position":
    """The position of a name; its numbers are drawn nowhere, as planning reads none."""
    import torch

    from headwise import positions

    make: dict[str, Callable[[], Position]] = {
        "none": positions.NoPosition,
        "alibi": lambda: positions.ALiBi(heads),
        "rotary": lambda: positions.Rotary(dim, pairs="halves"),
        "shaw": lambda: positions.Shaw(64, dim),
        "t5": lambda: positions.T5Bias(heads),
        "transformer_xl": lambda: positions.TransformerXL(heads, dim),
    }
    with torch.device("meta"):
        return make[name]()


def _document(made: "Plan", options: PlanOptions, shapes: Shapes) -> "Document":
    from headwise.document import Document, Paragraph, Table

    tensors = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    parts = [tensors, options.dtype, " ".join(options.mask.split())]
    if options.position != "none":
        parts.append(options.position)
    return Document(
        Text("The plan of an attention"),
        (Paragraph(same(", ".join(parts))), Table((Text("what"), Text("value")), made.rows())),
    )


def _as_json(made: "Plan", options: PlanOptions, shapes: Shapes) -> str:
    whole = {
        "format": "headwise.plan/1",
        "mask": options.mask,
        "position": options.position,
        **shapes,
        "dtype": options.dtype,
        "need": sorted(set(options.need)),
        "train": options.train,
        "engine": made.engine,
        "refused": {
            name: [{"en": reason.en, "zh": reason.zh} for reason in reasons]
            for name, reasons in made.refused.items()
        },
        "tiles": made.tiles,
        "share": made.share,
        "flops": made.flops,
        "bytes": made.bytes,
    }
    return json.dumps(whole, ensure_ascii=False, allow_nan=False)
