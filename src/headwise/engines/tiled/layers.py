"""A mask taken apart into layers that share no pair, each in the shape that computes it best."""

from functools import reduce

from headwise.engines.tiled.bands import bands, wide
from headwise.engines.tiled.lines import lines
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.tiles import tiles
from headwise.masks import Mask
from headwise.masks.base import And, Not, Or
from headwise.masks.global_tokens import GlobalTokens
from headwise.shapes import Frame

MOST = 8
"""How many alternatives a mask is multiplied out into at most."""


def parts(mask: Mask, frame: Frame, side: int) -> list[Part]:
    """The parts that hold every pair the mask allows exactly once.

    Alternatives that depend on the distance only are one family of bands; those that need the
    place as well are bands or lines, less what came before; whatever is left is tiles.

    Args:
        mask: resolved for the frame.
        frame: the outer shape.
        side: rows of a block of queries.
    """
    alternatives = disjuncts(mask)
    near = [each for each in alternatives if each.by_distance]
    found, before = list[Part](), list[Mask]()
    if near:
        band = reduce(Or, near)
        found += bands(band, None, frame, side, len(found))
        before.append(band)
    left = list[Mask]()
    for each in (each for each in alternatives if not each.by_distance):
        family = _family(each, before, frame, side, _next(found))
        if family is None:
            left.append(each)
        else:
            found += family
            before.append(each)
    if left:
        found += tiles(_less(reduce(Or, left), before), frame, side, _next(found))
    return found


def _family(
    mask: Mask, before: list[Mask], frame: Frame, side: int, layer: int
) -> list[Part] | None:
    """One alternative as bands or lines, or None if it is neither."""
    together = conjuncts(mask)
    if any(isinstance(each, GlobalTokens) for each in together):
        return lines(_less(mask, before), together, frame, layer)
    near = [each for each in together if each.by_distance]
    if not near or wide(reduce(And, near), frame):
        return None
    rest = [each for each in together if not each.by_distance]
    near += [Not(each) for each in before if each.by_distance]
    rest += [Not(each) for each in before if not each.by_distance]
    return bands(reduce(And, near), reduce(And, rest), frame, side, layer)


def _less(mask: Mask, before: list[Mask]) -> Mask:
    return reduce(And, (Not(each) for each in before), mask)


def _next(found: list[Part]) -> int:
    return 1 + max((part.layer for part in found), default=-1)


def disjuncts(mask: Mask) -> list[Mask]:
    """Masks whose union the mask is, none of them an Or, unless there were too many."""
    if isinstance(mask, Or):
        return disjuncts(mask.left) + disjuncts(mask.right)
    if isinstance(mask, And) and not mask.by_distance:
        left, right = disjuncts(mask.left), disjuncts(mask.right)
        if len(left) * len(right) <= MOST:
            return [And(one, other) for one in left for other in right]
    return [mask]


def conjuncts(mask: Mask) -> list[Mask]:
    """Masks whose intersection the mask is, none of them an And."""
    if isinstance(mask, And):
        return conjuncts(mask.left) + conjuncts(mask.right)
    return [mask]
