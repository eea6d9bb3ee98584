"""Heads with different masks are computed separately, each mask with parts of its own.

Together they would share one set of tiles, and a pair that one head needs would be computed for
every head.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.masks import Mask
from headwise.masks.mask import And, Not, Or
from headwise.masks.patterns.composed import PerHead
from headwise.positions import Stage
from headwise.shapes import AttentionShape

Group = tuple[tuple[int, ...], Mask]
"""Some heads, and the mask that they share."""


def head_groups(call: Call) -> list[Group]:
    """The heads grouped by their masks; one group of all heads where they cannot be separated.

    They cannot where a mask other than `per_head` depends on the head, or where a position adds to
    scores or values, since it may have parameters for every head.
    """
    heads = tuple(range(call.shape.heads))
    acts = {Stage.SCORES, Stage.VALUES} & call.position.stages
    if acts or not heads or not _splits(call.mask, call.shape):
        return [(heads, call.mask)]
    found: dict[Mask, tuple[int, ...]] = {}
    for head in heads:
        mask = _of(call.mask, head)
        found[mask] = (*found.get(mask, ()), head)
    return [(some, mask) for mask, some in found.items()]


def run_per_head(call: Call, apart: list[Group], run: Callable[[Call], Result]) -> Result:
    """Every group separately, concatenated in the order of the heads."""
    results = [run(_part(call, heads, mask)) for heads, mask in apart]
    order = torch.tensor([head for heads, _ in apart for head in heads], device=call.q.device)
    back = order.argsort()

    def joined(pieces: list[Tensor]) -> Tensor:
        return torch.cat(pieces, dim=1).index_select(1, back)

    sums = [r.logsumexp for r in results if r.logsumexp is not None]
    output = joined([result.output for result in results])
    return Result(output, logsumexp=joined(sums) if sums else None)


def _splits(mask: Mask, shape: AttentionShape) -> bool:
    """Whether a mask contains `per_head`, and no other part of it depends on the head."""
    patterns = [part for part in mask.walk() if not isinstance(part, And | Or | Not | PerHead)]
    splits = any(isinstance(part, PerHead) for part in mask.walk())
    return splits and not any(_depends_on_head(pattern, shape) for pattern in patterns)


def _depends_on_head(mask: Mask, shape: AttentionShape) -> bool:
    """Whether the rule or the bias has an axis of heads."""
    first = replace(shape, queries=min(shape.queries, 1), keys=min(shape.keys, 1)).indices()
    given = [mask.rule(*first)]
    added = mask.bias(*first)
    given += [] if added is None else [added]
    return any(values.dim() > 2 and values.shape[-3] > 1 for values in given)


def _of(mask: Mask, head: int) -> Mask:
    """The mask of one head."""
    if isinstance(mask, PerHead):
        return _of(mask.masks[head], head)
    return mask.map(lambda child: _of(child, head))


def _part(call: Call, heads: tuple[int, ...], mask: Mask) -> Call:
    """The call of some heads, every head with its own key/value head."""
    own = torch.tensor(heads, device=call.q.device)
    q = call.q.index_select(1, own)
    k, v = (rows.index_select(1, own // call.group) for rows in (call.k, call.v))
    sinks = None if call.sinks is None else call.sinks.index_select(0, own)
    shape = replace(call.shape, heads=len(heads))
    return replace(call, q=q, k=k, v=v, mask=mask, shape=shape, sinks=sinks)
