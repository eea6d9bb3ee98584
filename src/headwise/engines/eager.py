"""Attention step by step in the input's dtype: for small calls, for weights, for any derivative."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import Call, Result, softmax_dtype
from headwise.engines.autograd_transforms import transformed
from headwise.engines.dropout import Keep, draw_call_seed
from headwise.engines.statistics import apply_sinks, measured
from headwise.lang import Text
from headwise.masks import full

NAME = "eager"


def why_not(call: Call) -> Iterator[Text]:
    """Yield nothing: this engine can run every call."""
    del call
    yield from ()


def worthwhile(call: Call) -> bool:
    """Return True: no engine after this one in `ENGINES` is chosen automatically."""
    del call
    return True


def run(call: Call) -> Result:
    """Compute attention in O(Lq Lk) memory, differentiable to any order; copy no k per head."""
    allowed = call.allowed()  # (B or 1, H or 1, Lq, Lk)
    k, v = zero_masked_kv(allowed.any(-2), call.k, call.v)
    q, k = call.position.content(call.q, k, call.shape)
    if q.dtype == torch.float16:  # unscaled scores may overflow float16
        q, k = q.float(), k.float()
    scores = per_head_matmul(q, k.transpose(-2, -1))  # (B, H, Lq, Lk)
    scores = scores.to(softmax_dtype(scores.dtype)) * call.scale
    if call.score_function is not None:
        scores = call.score_function(scores, *call.shape.indices())
    bias = call.bias()
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    fully_masked = None
    if call.mask != full() or not call.shape.keys:
        fully_masked = ~allowed.any(-1, keepdim=True)  # (B or 1, H or 1, Lq, 1)
        scores = torch.where(allowed, scores, torch.where(fully_masked, 0.0, -torch.inf))
    weights = scores.softmax(-1)
    sums = scores.logsumexp(-1) if call.sums else None
    if fully_masked is not None:
        weights = weights.masked_fill(fully_masked, 0.0)
        sums = None if sums is None else sums.masked_fill(fully_masked[..., 0], -torch.inf)
    if sums is not None:
        weights, sums = apply_sinks(weights, sums, call.sinks)
    dropped = _dropped(call, weights) if call.dropout else weights
    output = per_head_matmul(dropped.to(v.dtype), v)  # (B, H, Lq, Dv)
    added = call.position.values(dropped.to(v.dtype), *call.position_ids())
    return Result(
        output=output if added is None else output + added,
        weights=weights.to(call.q.dtype) if "weights" in call.need else None,
        logsumexp=sums if "logsumexp" in call.need else None,
        **measured(weights, call.need, *call.position_ids()),
    )


def per_head_matmul(rows: Tensor, shared: Tensor) -> Tensor:
    """Multiply rows (B, H, n, X) by shared (B, G, X, Y), one product per head.

    `kernel.grouped_matmul` computes one product per group. It copies nothing, but the rounding of a
    head then depends on its place in the batch.
    """
    groups = shared.shape[1]
    if rows.shape[1] == groups:
        return rows @ shared
    split = torch.unflatten(rows, 1, (groups, -1))
    return (split @ shared[:, :, None]).flatten(1, 2)


def zero_masked_kv(seen: Tensor, *rows: Tensor) -> list[Tensor]:
    """Set keys and values that no query of the group attends to to 0: 0 times NaN is NaN.

    ``seen`` is (B or 1, H or 1, Lk); the rows are (B, G, Lk, X).
    """
    if seen.shape[1] > 1:
        seen = torch.unflatten(seen, 1, (rows[0].shape[1], -1)).any(2)  # (B or 1, G, Lk)
    return [torch.where(seen[..., None], tensor, 0.0) for tensor in rows]


def _dropped(call: Call, weights: Tensor) -> Tensor:
    """Apply dropout to the weights, as every engine does where a seed can be drawn."""
    if torch.compiler.is_compiling() or transformed(call):
        return F.dropout(weights, call.dropout)
    keep = Keep(call.dropout, draw_call_seed()).dense(call.shape)
    factor = 0.0 if call.dropout == 1 else 1 / (1 - call.dropout)
    return torch.where(keep, weights * factor, 0.0)
