"""Whether what heads do on other texts can stand in for what they do on these."""

from headwise.cli.ablate.measured import Plan
from headwise.cli.ablate.reading import Reading, tokens
from headwise.errors import BadValue
from headwise.heads.effect.instead import MOST_NUMBERS
from headwise.heads.effect.sites import Site, every_head
from headwise.lang import Text

ENCODER, DECODER = Text("encoder"), Text("decoder")


def check_resampling(plan: Plan, found: tuple[Site, ...], reading: Reading) -> None:
    """Refuse texts that do not fit together, or too many, before the work.

    Args:
        plan: which heads, which at random may be any.
        found: the attentions of the model.
        reading: the texts.

    Raises:
        BadValue: if the texts are not of one length in every stack whose heads may go, or more
            numbers would be kept than `headwise.ablate` keeps.
    """
    heads = every_head(found) if plan.draws else plan.heads
    for part in sorted({head.layer.part for head in heads}):
        _check_lengths(part, reading)
    widths = {layer: site.size for site in found for layer in site.layers}
    each = [
        widths[head.layer] * sum(tokens(text, head.layer.part) for text in reading.others)
        for head in heads
    ]
    kept = sum(sorted(each)[-len(plan.heads) :])
    if kept > MOST_NUMBERS:
        raise BadValue(
            "how: 'resample' would keep {kept} numbers of other texts, and "
            "{most_numbers} at most are kept; give fewer --texts or heads, or use --how "
            "mean",
            kept=kept,
            most_numbers=MOST_NUMBERS,
        )


def _check_lengths(part: str, reading: Reading) -> None:
    lengths = {tokens(text, part) for text in (*reading.measured, *reading.others)}
    if len(lengths) == 1:
        return
    way = Text("use --how mean")
    if not part:
        way = Text("cut them with --length, or use --how mean")
    where = Text("")
    if part:
        stack = ENCODER if part == "encoder" else DECODER
        where = Text(" in the {stack}", stack=stack)
    raise BadValue(
        "how: 'resample' needs texts of one length, got {min} to {max} tokens{where}; {way}",
        min=min(lengths),
        max=max(lengths),
        where=where,
        way=way,
    )
