"""Whole columns and whole rows: a few keys that many queries see, a few queries that see many."""

from headwise.engines.tiled.columns import Columns
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.rows import Picked, Strided
from headwise.masks import Mask
from headwise.masks.base import And, Not
from headwise.masks.global_tokens import GlobalTokens
from headwise.shapes import Frame


def lines(mask: Mask, together: list[Mask], frame: Frame, layer: int) -> list[Part]:
    """The parts of a mask that allows nothing outside the columns and rows of global tokens.

    Args:
        mask: what the parts hold.
        together: masks that must all allow a pair of it; one at least is `GlobalTokens`.
        frame: the outer shape.
        layer: of the columns; the rows are the next.
    """
    tokens = next(each for each in together if isinstance(each, GlobalTokens))
    chosen = tokens.chosen.any(0).nonzero()[:, 0].to(frame.device)
    keys = chosen[chosen < frame.keys]
    rows = chosen - frame.offset
    rows = rows[(rows >= 0) & (rows < frame.queries)] if tokens.symmetric else rows[:0]
    everybody, everything = Strided(0, 1, frame.queries), Strided(0, 1, frame.keys)
    found = list[Part]()
    if len(keys):
        found.append(Part(everybody, Picked(keys[None]), mask, layer=layer))
    if len(rows):
        rest = And(mask, Not(Columns(keys)))
        found.append(Part(Picked(rows[None]), everything, rest, layer=layer + 1))
    return found
