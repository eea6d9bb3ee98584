"""NaN and infinity in keys and values, which reach only the queries that may attend to them.

Engines multiply the weight 0 of a masked key by its value, and 0 times NaN is NaN. If an output is
not finite, it is therefore computed again without those keys (decision 0022).
"""

from dataclasses import fields, replace

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from headwise.call import Call, Result
from headwise.engines import Engine
from headwise.engines.autograd_transforms import under_functorch
from headwise.engines.tiled.problem import finite
from headwise.masks import full

PAIRS = 1 << 22  # the most query-key pairs evaluated at once


def run(engine: Engine, call: Call) -> Result:
    """Return the result of an engine, in which masked pairs have no effect."""
    result = engine.run(call)
    if call.mask == full() or _is_unreadable(call) or finite(result.output):
        return result
    bad = _nonfinite_keys(call)  # (B, H, Lk)
    if not bool(bad.any()):
        return result
    return _merged(result, engine.run(_without(call, bad)), _queries_that_attend(call, bad))


def _is_unreadable(call: Call) -> bool:
    """Return whether values cannot be read: while compiling, in a transform, or not on a CPU."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or under_functorch():
        return True
    return call.q.device.type != "cpu" or isinstance(call.q, FakeTensor)


def _nonfinite_keys(call: Call) -> Tensor:
    """Return (B, H, Lk), True for a key that has, or whose value has, a nonfinite number."""
    bad = ~(call.k.detach().isfinite().all(-1) & call.v.detach().isfinite().all(-1))
    return bad.repeat_interleave(call.group, 1)


def _without(call: Call, bad: Tensor) -> Call:
    """Return the call with 0 instead of the keys and values that are not finite."""
    heads = bad[:, :: call.group, :, None]  # (B, G, Lk, 1)
    k, v = (torch.where(heads, 0.0, rows) for rows in (call.k, call.v))
    return replace(call, k=k, v=v)


def _queries_that_attend(call: Call, bad: Tensor) -> Tensor:
    """Return (B, H, Lq), True for queries that may attend to a nonfinite key."""
    b, h, q, _ = call.shape.indices()
    attend = bad.new_zeros(call.q.shape[:3])
    numbers = bad.any(1).any(0).nonzero()[:, 0]
    for some in torch.split(numbers, max(1, PAIRS // max(1, attend.numel()))):
        allowed = call.mask.rule(b, h, q, some[None, None, None])
        attend |= (allowed & bad[:, :, None, some]).any(-1)
    return attend


def _merged(result: Result, clean: Result, attend: Tensor) -> Result:
    """Return the clean result, and the first result for queries that may attend to a nonfinite key.

    These queries pass on no gradient unless their outputs are finite: it would be NaN for every
    key.
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
