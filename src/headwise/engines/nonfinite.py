"""NaN and infinity in keys and values, which reach only the queries that may attend to them.

Engines multiply the weight 0 of a masked key by its value, and 0 times NaN is NaN. So an output
with numbers that are not finite is computed again without those keys (decision 0022).
"""

from dataclasses import fields, replace

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from headwise.call import Call, Result, softmax_dtype
from headwise.engines import Engine
from headwise.engines.autograd_transforms import under_functorch
from headwise.masks import full

PAIRS = 1 << 22  # pairs of query and key that are evaluated at once


def run(engine: Engine, call: Call) -> Result:
    """The result of an engine, in which no masked pair has an effect."""
    result = engine.run(call)
    if call.mask == full() or _is_unreadable(call) or _is_finite(result.output):
        return result
    bad = _nonfinite_keys(call)  # (B, H, Lk)
    if not bool(bad.any()):
        return result
    return _merged(result, engine.run(_without(call, bad)), _queries_that_attend(call, bad))


def _is_unreadable(call: Call) -> bool:
    """Whether no number can be read: while compiling, under a transform, or not on a CPU."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or under_functorch():
        return True
    return call.q.device.type != "cpu" or isinstance(call.q, FakeTensor)


def _is_finite(output: Tensor) -> bool:
    total = output.detach().sum(dtype=softmax_dtype(output.dtype))  # may overflow: no harm
    return bool(total.isfinite())


def _nonfinite_keys(call: Call) -> Tensor:
    """(B, H, Lk), True where a key or its value has a number that is not finite."""
    bad = ~(call.k.detach().isfinite().all(-1) & call.v.detach().isfinite().all(-1))
    return bad.repeat_interleave(call.group, 1)


def _without(call: Call, bad: Tensor) -> Call:
    """The call with 0 in place of the keys and values that are not finite."""
    heads = bad[:, :: call.group, :, None]  # (B, G, Lk, 1)
    k, v = (torch.where(heads, 0.0, rows) for rows in (call.k, call.v))
    return replace(call, k=k, v=v)


def _queries_that_attend(call: Call, bad: Tensor) -> Tensor:
    """(B, H, Lq), True for the queries that may attend to such a key."""
    b, h, q, _ = call.shape.indices()
    attend = bad.new_zeros(call.q.shape[:3])
    numbers = bad.any(1).any(0).nonzero()[:, 0]
    for some in torch.split(numbers, max(1, PAIRS // max(1, attend.numel()))):
        allowed = call.mask.rule(b, h, q, some[None, None, None])
        attend |= (allowed & bad[:, :, None, some]).any(-1)
    return attend


def _merged(result: Result, clean: Result, attend: Tensor) -> Result:
    """The clean result, and the first one for the queries that may attend to such a key.

    Those pass no gradient on unless their outputs are finite: it would be NaN for every key.
    """
    learned = bool(result.output.detach()[attend].isfinite().all())
    merged = {}
    for field in fields(Result):
        own, other = getattr(result, field.name), getattr(clean, field.name)
        if own is None:
            continue
        if field.name == "received":  # of a key, from all queries of the head together
            merged[field.name] = other.masked_fill(attend.any(-1, keepdim=True), torch.nan)
            continue
        rows = attend if own.dim() == attend.dim() else attend[..., None]
        merged[field.name] = torch.where(rows, own if learned else own.detach(), other)
    return Result(**merged)


__all__ = ["run"]
