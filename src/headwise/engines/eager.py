"""Attention step by step in the dtype given: for small things, for weights, for any derivative."""

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import Call, Result, softmax_dtype
from headwise.engines.autograd_transforms import transformed
from headwise.engines.dropout import Keep, draw_call_seed
from headwise.engines.sinks import apply_sinks
from headwise.engines.statistics import measured
from headwise.lang import Text
from headwise.masks import full
from headwise.shapes import Allowed

NAME = "eager"


def why_not(call: Call) -> list[Text]:
    """Every reason why this engine cannot run the call: there is none."""
    del call
    return []


def run(call: Call) -> Result:
    """Attention in O(Lq Lk) memory, differentiable to any order; keys are not copied per head."""
    allowed = call.allowed()  # (B or 1, H or 1, Lq, Lk)
    hidden_k, v = zero_masked_kv(call, allowed)
    q, k = call.position.content(call.q, hidden_k, call.frame)
    scores = grouped(q, k.transpose(-2, -1), call.group)  # (B, H, Lq, Lk)
    scores = scores.to(softmax_dtype(scores.dtype)) * call.scale
    bias = call.bias()
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    every = call.mask == full() and call.frame.keys > 0  # nothing is hidden, no row is blind
    scores, blind = (scores, None) if every else masked(scores, allowed)
    weights = scores.softmax(-1)
    weights = weights if blind is None else weights.masked_fill(blind, 0.0)
    sums = logsumexp(scores, blind) if call.sums else None
    if sums is not None and call.sinks is not None:
        weights, sums = apply_sinks(weights, sums, call.sinks)
    dropped = dropped_of(call, weights) if call.dropout else weights
    mixed = grouped(dropped.to(v.dtype), v, call.group)  # (B, H, Lq, Dv)
    added = call.position.values(dropped.to(v.dtype), *call.places())
    return Result(
        output=mixed if added is None else mixed + added,
        weights=weights.to(call.q.dtype) if "weights" in call.need else None,
        logsumexp=sums if "logsumexp" in call.need else None,
        **measured(weights, call.need, *call.places()),
    )


def dropped_of(call: Call, weights: Tensor) -> Tensor:
    """The weights after dropout: as in every engine, where a number for the call can be had."""
    if torch.compiler.is_compiling() or transformed(call):
        return F.dropout(weights, call.dropout)
    keep = Keep(call.dropout, draw_call_seed()).dense(call.frame)
    factor = 0.0 if call.dropout == 1 else 1 / (1 - call.dropout)
    return torch.where(keep, weights * factor, 0.0)


def grouped(rows: Tensor, shared: Tensor, group: int) -> Tensor:
    """rows (B, H, L, X) times shared (B, G, X, Y), head h with shared head h // group."""
    if group == 1:
        return rows @ shared
    batch, heads, length, width = rows.shape
    split = rows.reshape(batch, heads // group, group, length, width)
    return (split @ shared[:, :, None]).flatten(1, 2)


def masked(scores: Tensor, allowed: Allowed) -> tuple[Tensor, Tensor]:
    """Scores with -inf where not allowed, and which rows are blind; those get 0, to stay finite."""
    blind = ~allowed.any(-1, keepdim=True)
    return torch.where(allowed, scores, torch.where(blind, 0.0, -torch.inf)), blind


def logsumexp(scores: Tensor, blind: Tensor | None) -> Tensor:
    """The logsumexp of each row of what `masked` gives, -inf where blind."""
    sums = scores.logsumexp(-1)
    return sums if blind is None else sums.masked_fill(blind[..., 0], -torch.inf)


def zero_masked_kv(call: Call, allowed: Allowed) -> tuple[Tensor, Tensor]:
    """k and v with 0 in the rows that no query of the group sees, NaN and inf included."""
    groups = call.k.shape[1]
    seen = allowed.any(-2)  # (B or 1, H or 1, Lk)
    if seen.shape[1] > 1:
        seen = torch.unflatten(seen, 1, (groups, call.group)).any(2)  # (B or 1, G, Lk)
    column = seen[..., None]
    return torch.where(column, call.k, 0.0), torch.where(column, call.v, 0.0)
