"""``headwise show``: the drawing of a mask, and its number of allowed pairs."""

from types import SimpleNamespace

import click

from headwise.cli.reporting import Destination, build_command, click_options, options
from headwise.errors import BadValue
from headwise.lang import Lang, Text

SUMMARY = Text("Draw a mask and count its allowed pairs; without MASK, list all masks.")

HELP = Text(
    "Draw a mask and count its allowed pairs; without MASK, list all masks.\n\n    "
    "MASK is written as in Python: calls of masks, combined with & (both allow), | "
    "(either allows)\n    and ~ (the opposite). It is parsed, never run.\n\n    \b\n    "
    'headwise show "causal() & window(3, 0)"\n    headwise show "window(256, 256) | '
    'global_tokens([0])" --keys 16384\n    headwise show "per_head([causal(), full()])" '
    "--output mask.html\n\n    Up to 48 queries and keys (256 in HTML), a cell is one "
    "pair. Larger masks are pooled: a cell is\n    the share of its pairs that may "
    "attend, or, above 16 million pairs, the kind of the whole\n    tile: empty, mixed or "
    "full.\n    "
)

LONGEST = 2**18


def command(lang: Lang) -> click.Command:
    """Return the command ``show``, in the reader's language."""
    parameters = [
        click.Argument(["mask"], required=False),
        *click_options(_HELP_TEXTS, _KINDS, lang),
        *options(lang),
    ]
    return build_command("show", _run, parameters, lang, SUMMARY, HELP)


_SIZE = click.IntRange(1, LONGEST)
_HELP_TEXTS = {
    "--queries": Text("Number of queries; default: the number of keys."),
    "--keys": Text("Number of keys; default 16."),
}
_KINDS = {name: {"type": _SIZE} for name in _HELP_TEXTS}


def _run(values: SimpleNamespace, lang: Lang) -> int:
    from headwise.drawing import Shown, every_mask, every_mask_as_json

    destination = Destination(values.format, values.output, lang)
    if values.mask is not None:
        shown = Shown.of(values.mask, values.queries, values.keys)
        destination.write(lambda: shown.document(destination.kind), shown.as_json)
        return 0
    for name, value in (("queries", values.queries), ("keys", values.keys)):
        if value is not None:
            raise BadValue(
                "{name}: expected a mask for {name} {value}, got none; write the mask "
                "first, as in headwise show 'causal()'",
                name=name,
                value=value,
            )
    destination.write(every_mask, every_mask_as_json)
    return 0
