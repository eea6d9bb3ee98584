"""What is added to the scaled scores of a part: -inf where not allowed, else the bias."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines.dropping import drops
from headwise.engines.tiled.far import NEAR
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.rows import Picked, Strided
from headwise.engines.tiled.work import Work
from headwise.positions import Stage
from headwise.positions.relative import Relative

BITS = {torch.float32: (torch.int32, -(1 << 23)), torch.float64: (torch.int64, -(1 << 52))}
"""The integers of a dtype's size, and the one whose bits are its -inf."""


@dataclass(frozen=True, eq=False)
class Added:
    """What a part's scores get.

    Attributes:
        scores: (B or 1, H or 1, n or 1, r, m) in the softmax dtype, or None for nothing.
        blind: (B or 1, H or 1, n or 1, r), True where a query sees no key of the part; or None.
    """

    scores: Tensor | None
    blind: Tensor | None


def fixed(work: Work, part: Part) -> bool:
    """Whether every block of a part gets the same."""
    biased = work.mask.biased or moves(work, part)
    return part.mask is None and not biased and not isinstance(part.keys, Picked)


def moves(work: Work, part: Part) -> bool:
    """Whether the position adds to the scores of a part."""
    return part.place == NEAR and Stage.SCORES in work.position.stages


def added(work: Work, part: Part, asked: Tensor, given: Relative | None = None) -> Added:
    """What the scores of a part get, differentiable in what the bias is made of.

    Args:
        work: the attention.
        part: some blocks of it.
        asked: the part's queries as they were given, (B, H, n, r, D).
        given: what gives its bias, if not that of the attention.
    """
    given = relative(work, part) if given is None else given
    may, extra = allowed(work, part), bias(work, part, asked, given)
    if may is None:
        return Added(extra, None)
    wide = softmax_dtype(work.q.dtype)
    if extra is None and drops(work.mask):
        return Added(hidden(may, wide), ~may.any(-1))
    zero = torch.zeros((), dtype=wide, device=may.device)
    scores = torch.where(may, zero if extra is None else extra, -torch.inf)
    return Added(scores, ~may.any(-1))


def hidden(may: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a pair may attend and -inf elsewhere, without a branch.

    A choice between two numbers, pair by pair, costs ten times as much where it follows no pattern.
    """
    whole, bits = BITS[dtype]
    return (~may).to(whole).mul_(bits).view(dtype)


def allowed(work: Work, part: Part) -> Tensor | None:
    """Which pairs of a part may attend, (B or 1, H or 1, n or 1, r, m), or None for all."""
    rows, keys = part.queries.size, part.keys.size
    found = list[Tensor]()
    if part.band is not None:
        found.append(part.band.dense(rows, keys)[None, None, None])
    if isinstance(part.keys, Picked) and bool((part.keys.index < 0).any()):
        found.append((part.keys.index >= 0)[None, None, :, None])
    if part.mask is not None:
        found.append(_whole(part.mask.rule(*_indices(work, part)), part))
    if not found:
        return None
    may = found[0]
    for each in found[1:]:
        may = may & each
    return may.expand(-1, -1, -1, rows, keys)


def relative(work: Work, part: Part) -> Relative | None:
    """What gives the bias at the differences of a part, as views; None where it does not serve."""
    where = differences(work, part)
    return None if where is None or work.relative is None else work.relative.at(where)


def differences(work: Work, part: Part) -> slice | None:
    """Where the differences of a part stand among all; None where blocks differ in them."""
    queries, keys = part.queries, part.keys
    if work.relative is None or not (moves(work, part) and part.even):
        return None
    if not isinstance(queries, Strided) or not isinstance(keys, Strided):
        return None
    if queries.step != keys.step:
        return None
    last = queries.start + (queries.size - 1) * queries.step + work.frame.offset
    first = keys.start - last - work.least
    return slice(first, first + (queries.size + keys.size - 2) * keys.step + 1, keys.step)


def bias(work: Work, part: Part, asked: Tensor, given: Relative | None) -> Tensor | None:
    """What is added to the scaled scores of a part, before it is masked; or None."""
    fixed = work.mask.bias(*_indices(work, part)) if work.mask.biased else None
    moving = _moving(work, part, asked, given) if moves(work, part) else None
    wide = softmax_dtype(work.q.dtype)
    fixed = None if fixed is None else _whole(fixed, part).to(wide)
    if fixed is None or moving is None:
        return moving if fixed is None else fixed
    return fixed + moving


def _moving(work: Work, part: Part, asked: Tensor, given: Relative | None) -> Tensor | None:
    """The position's bias, (B or 1, H or 1, n or 1, r, m)."""
    wide = softmax_dtype(asked.dtype)
    if given is not None:
        return unfolded(given.bias(folded(asked), work.scale).to(wide), asked.shape[0])
    queries, keys = places(work, part)
    if part.even and work.relative is not None:  # blocks alike in differences share a call
        one = work.position.bias(folded(asked), queries[0], keys[0], work.scale)
        return None if one is None else unfolded(one.to(wide), asked.shape[0])
    blocks = [
        work.position.bias(asked[:, :, n], queries[n], keys[n], work.scale)
        for n in range(asked.shape[2])
    ]
    known = [block.to(wide) for block in blocks if block is not None]
    return torch.stack(known, 2) if known else None


def values(work: Work, part: Part, weights: Tensor) -> Tensor:
    """What the position adds to the output for the weights (B, H, n, r, m) of a part."""
    queries, keys = places(work, part)
    blocks = [
        work.position.values(weights[:, :, n], queries[n], keys[n]) for n in range(weights.shape[2])
    ]
    return torch.stack([block for block in blocks if block is not None], 2)


def folded(blocks: Tensor) -> Tensor:
    """(B, H, n, r, X) as (B n, H, r, X)."""
    return blocks.transpose(1, 2).flatten(0, 1)


def unfolded(rows: Tensor, samples: int) -> Tensor:
    """(B n, H, r, X) as (B, H, n, r, X); of what all share, one block for all."""
    if rows.shape[0] == 1:
        return rows[:, :, None]
    return torch.unflatten(rows, 0, (samples, -1)).transpose(1, 2)


def places(work: Work, part: Part) -> tuple[Tensor, Tensor]:
    """Where the queries (n, r) and the keys (n, m) of a part stand; no key counts as key 0."""
    device = work.frame.device
    queries = part.queries.numbers(device) + work.frame.offset
    return queries, part.keys.numbers(device).clamp(min=0)


def _indices(work: Work, part: Part) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """b (B,1,1,1,1), h (1,H,1,1,1), query positions (1,1,n,r,1), keys (1,1,n,1,m)."""
    queries, keys = places(work, part)
    b = torch.arange(work.frame.batch, device=queries.device)[:, None, None, None, None]
    h = torch.arange(work.frame.heads, device=queries.device)[None, :, None, None, None]
    return b, h, queries[None, None, :, :, None], keys[None, None, :, None]


def _whole(values: Tensor, part: Part) -> Tensor:
    """With all five axes, those of the part's own at full size."""
    values = values.view(*(1,) * (5 - values.dim()), *values.shape)
    return values.expand(-1, -1, part.queries.count, part.queries.size, part.keys.size)
