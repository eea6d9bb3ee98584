"""Attention whose cost follows the pattern of the mask, not Lq Lk.

A mask is decomposed into parts: bands become overlapping views of the keys and go to the fused
kernel as one batch, other tiles are gathered, and parts that share queries are merged by their
logsumexp. Forward and backward, without any tensor of size (Lq, Lk).

    eligibility         which calls it can run, and which are worthwhile
    per_head            heads with different masks, separately
    decompose, tiles    from a mask to `parts`
    problem             the tensors of one attention, and the buffers of their gradients
    scores              what is added to the scores of a part
    forward, backward   over all parts, by `batched_kernel`
    autograd, operator  as functions for autograd and torch.compile, with an `encoding`
"""

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.engines import kernel
from headwise.engines.autograd_transforms import with_frozen_tensors
from headwise.engines.dropout import Keep, draw_call_seed, with_dropout
from headwise.engines.statistics import widen_for_sinks
from headwise.engines.tiled.autograd import TiledSetting, dropped, is_plain, tiled
from headwise.engines.tiled.eligibility import head_groups, run_per_head, why_not, worthwhile
from headwise.engines.tiled.encoding import encodable, encode
from headwise.engines.tiled.operator import operator
from headwise.engines.tiled.problem import clipped_terms, relative_terms
from headwise.positions import Stage

NAME = "tiled"


def run(call: Call) -> Result:
    """Attention part by part."""
    if torch.compiler.is_compiling():
        return _compiled(call)
    if call.dropout:
        return dropped(call) if is_plain(call) else with_dropout(call, run)
    apart = head_groups(call)
    return _run(call) if len(apart) == 1 else run_per_head(call, apart, _run)


def _run(call: Call) -> Result:
    """Attention of heads that share one mask or cannot be separated."""
    q, k, v, raw_queries = _packed(call)
    known = relative_terms(call.position, raw_queries, call.shape, call.scale)
    far = clipped_terms(call.position, call.mask, call.shape, k, v)
    more = () if far is None else (*far.keys, *far.values)
    q, k, v, *further = _even(call, q, k, v, *more)
    setting = TiledSetting(
        call.mask,
        with_frozen_tensors(call.position),
        call.scale,
        call.shape,
        tuple(tensor is not None for tensor in known),
        None if far is None else far.reach,
        call.sinks is not None,
    )
    relative = [tensor for tensor in known if tensor is not None]
    sinks = () if call.sinks is None else (call.sinks,)
    tensors = (q, k, v, raw_queries, *relative, *further, *sinks)
    return _result(call, *tiled(setting, *tensors, *_learned(call)))


def _compiled(call: Call) -> Result:
    """Attention as one operator of a compiled graph."""
    if call.dropout and not is_plain(call):
        return with_dropout(call, _compiled)
    q, k, v, raw_queries = _packed(call)
    acts = {Stage.SCORES, Stage.VALUES} & call.position.stages
    keep = Keep(call.dropout, draw_call_seed()) if call.dropout else None
    written = encode(call.mask, *((call.position, raw_queries) if acts else (None, None)), keep)
    qkv = _even(call, q, k, v)
    return _result(call, *operator(*qkv, *written, call.shape.offset, call.scale, call.sinks))


def _packed(call: Call) -> list[Tensor]:
    """Rotated q and k, v, and the raw queries."""
    q, k = call.position.content(call.q, call.k, call.shape)
    return [kernel.packed(tensor) for tensor in widen_for_sinks(call, q, k, call.v, call.q)]


def _even(call: Call, q: Tensor, *others: Tensor) -> list[Tensor]:
    """With one last size, where the fused kernel computes all parts."""
    if kernel.fused(q) and Stage.VALUES not in call.position.stages:
        return kernel.even(q, *others)
    return [q, *others]


def _result(call: Call, output: Tensor, logsumexp: Tensor) -> Result:
    sums = logsumexp if "logsumexp" in call.need else None
    return Result(output[..., : call.v.shape[3]].to(call.v.dtype), logsumexp=sums)


def _learned(call: Call) -> list[Tensor]:
    """Tensors of mask and position that require gradients."""
    held = encode(call.mask)[1] if encodable(call.mask) else []
    return [t for t in (*call.position.parameters(), *held) if t.requires_grad]


__all__ = ["NAME", "run", "why_not", "worthwhile"]
