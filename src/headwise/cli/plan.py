"""``headwise plan``: the engine that would run an attention, the reasons, and the cost."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.reporting import Destination, build_command, click_options, options
from headwise.lang import Lang, Text, same

if TYPE_CHECKING:
    from headwise.document import Document
    from headwise.planning import Plan
    from headwise.positions import Position

SUMMARY = Text("Show which engine would run an attention, why others would not, and the cost.")

HELP = Text(
    "Show which engine would run an attention, why others would not, and the cost. Nothing is "
    'computed.\n\n    \b\n    headwise plan --mask "causal() & window(511, 0)" --length '
    "131072\n    headwise plan --length 4096 --heads 32 --kv-heads 8 --need "
    "weights\n    "
)

LONGEST = 2**18
MOST = 4096  # the largest batch size, number of heads, and head dim

HEADS, HEAD_DIM = 8, 64
DTYPES = ("float32", "float64", "bfloat16", "float16")
NEEDS = ("weights", "logsumexp", "entropy", "received", "distance", "largest")
"""The same as `headwise.call.NEEDS`, whose import would load torch."""
Shapes = dict[str, tuple[int, int, int, int]]
POSITIONS = ("none", "alibi", "rotary", "shaw", "t5", "transformer_xl")

_HELP_TEXTS = {
    "--mask": Text("The mask, written as for `headwise show`."),
    "--length": Text("Number of keys."),
    "--queries": Text("Number of queries; default: the number of keys."),
    "--heads": Text("Number of query heads; default: that of the mask, or {heads}.", heads=HEADS),
    "--kv-heads": Text("Number of key/value heads; default: the number of query heads."),
    "--head-dim": Text("Dimension of a head."),
    "--batch": Text("Batch size; default: that of the mask, or 1."),
    "--dtype": Text("Data type of the tensors."),
    "--need": Text("A further result to return; may be repeated."),
    "--position": Text("Position encoding."),
    "--train": Text("Plan for training, with a backward pass."),
    "--engine": Text("The engine; auto takes the first suitable one."),
}


def command(lang: Lang) -> click.Command:
    """Return the command ``plan``, in the reader's language."""
    parameters = [*click_options(_HELP_TEXTS, _KINDS, lang), *options(lang)]
    return build_command("plan", _run, parameters, lang, SUMMARY, HELP)


_LENGTH, _SIZE = click.IntRange(1, LONGEST), click.IntRange(1, MOST)
_KINDS: dict[str, dict[str, Any]] = {
    "--mask": {"default": "full()", "show_default": True},
    "--length": {"type": _LENGTH, "required": True},
    "--queries": {"type": _LENGTH},
    "--heads": {"type": _SIZE},
    "--kv-heads": {"type": _SIZE},
    "--head-dim": {"type": _SIZE, "default": HEAD_DIM, "show_default": True},
    "--batch": {"type": _SIZE},
    "--dtype": {"type": click.Choice(DTYPES), "default": DTYPES[0], "show_default": True},
    "--need": {"type": click.Choice(NEEDS), "multiple": True},
    "--position": {"type": click.Choice(POSITIONS), "default": "none", "show_default": True},
    "--train": {"is_flag": True},
    "--engine": {"default": "auto", "show_default": True},
}


def _run(values: SimpleNamespace, lang: Lang) -> int:
    destination = Destination(values.format, values.output, lang)
    chosen, shapes = _plan(values)
    destination.write(
        lambda: _document(chosen, values, shapes), lambda: _as_json(chosen, values, shapes)
    )
    return 0


def _plan(values: SimpleNamespace) -> "tuple[Plan, Shapes]":
    """Plan with tensors that share one number in memory, so that every length is possible."""
    import torch

    from headwise.masks.expression import parse
    from headwise.planning import plan

    mask = parse(values.mask)
    sizes = mask.required_sizes()
    mask_heads = sizes["H"] if sizes.get("H", 1) > 1 else HEADS
    batch, heads = values.batch or sizes.get("B", 1), values.heads or mask_heads
    queries = values.queries or sizes.get("Lq", values.length)
    shapes: Shapes = {
        "q": (batch, heads, queries, values.head_dim),
        **dict.fromkeys("kv", (batch, values.kv_heads or heads, values.length, values.head_dim)),
    }
    number = torch.zeros((), dtype=getattr(torch, values.dtype), requires_grad=values.train)
    with torch.set_grad_enabled(values.train):
        chosen = plan(
            *(number.expand(shape) for shape in shapes.values()),
            mask=mask,
            position=_position(values.position, heads, values.head_dim),
            need=values.need,
            engine=values.engine,
        )
    return chosen, shapes


def _position(name: str, heads: int, dim: int) -> "Position":
    """Return the named position on the meta device, since planning reads no parameters."""
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


def _document(chosen: "Plan", values: SimpleNamespace, shapes: Shapes) -> "Document":
    from headwise.document import Document, Paragraph, Table

    parts = [f"{name} {shape}" for name, shape in shapes.items()]
    parts += [values.dtype, " ".join(values.mask.split())]
    parts += [] if values.position == "none" else [values.position]
    table = Table((Text("property"), Text("value")), chosen.rows())
    return Document(Text("The plan of an attention"), (Paragraph(same(", ".join(parts))), table))


def _as_json(chosen: "Plan", values: SimpleNamespace, shapes: Shapes) -> str:
    data = {
        "format": "headwise.plan/1",
        "mask": values.mask,
        "position": values.position,
        **shapes,
        "dtype": values.dtype,
        "need": sorted(set(values.need)),
        "train": values.train,
        "engine": chosen.engine,
        "refused": {
            name: [{"en": reason.en, "zh": reason.zh} for reason in reasons]
            for name, reasons in chosen.refused.items()
        },
        "tiles": chosen.tiles,
        "share": chosen.share,
        "flops": chosen.flops,
        "bytes": chosen.bytes,
    }
    return json.dumps(data, ensure_ascii=False, allow_nan=False)
