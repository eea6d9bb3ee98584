"""Keys that nobody sees must not reach the arithmetic: 0 times NaN is NaN."""

from dataclasses import replace

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines.tiled.work import Work

PAIRS = 1 << 22
"""Pairs whose rule is written out at once."""


def without_hidden(work: Work) -> Work:
    """With 0 in the keys and values that no query of the group sees, if any is NaN or inf.

    A finite number there meets a weight of exactly 0 and needs nothing.
    """
    if finite(work.k) and finite(work.v):
        return work
    seen = _seen(work)  # (B or 1, H or 1, Lk)
    if seen.shape[1] > 1:
        seen = torch.unflatten(seen, 1, (work.k.shape[1], -1)).any(2)
    column = seen[..., None]
    k, v = torch.where(column, work.k, 0.0), torch.where(column, work.v, 0.0)
    if work.far is None:
        return replace(work, k=k, v=v)
    keys, values = (
        (torch.where(column, one, 0.0), torch.where(column, other, 0.0))
        for one, other in (work.far.keys, work.far.values)
    )
    return replace(work, k=k, v=v, far=replace(work.far, keys=keys, values=values))


def finite(rows: Tensor) -> bool:
    """Whether every number is finite; it may say no where a sum overflows."""
    return bool(rows.detach().sum(dtype=softmax_dtype(rows.dtype)).isfinite())


def _seen(work: Work) -> Tensor:
    """Which keys some query sees, a few queries at a time."""
    b, h, q, k = work.frame.indices()
    found: Tensor | None = None
    for rows in torch.split(q, max(1, PAIRS // work.frame.keys), 2):
        seen = work.mask.rule(b, h, rows, k)
        seen = seen.view(*(1,) * (4 - seen.dim()), *seen.shape).any(2)
        found = seen if found is None else found | seen
    if found is None:
        raise ValueError("tiled: an attention without queries")
    return found.expand(-1, -1, work.frame.keys)
