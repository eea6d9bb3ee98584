"""The definition of attention, with which everything else in headwise is compared.

It is exact and slow: every step is written as in the paper, in float64 by default, and returned. It
is differentiable to any order. No engine may import it.

Source: Vaswani et al. 2017, section 3.2; grouped heads: Ainslie et al. 2023; sinks: Xiao et al.
2023 (StreamingLLM), section 3.3, one learned logit per head as in OpenAI 2025 (gpt-oss model card).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.call import Call, softmax_dtype
from headwise.errors import BadValue
from headwise.shapes import Allowed


@dataclass(frozen=True, eq=False)
class Steps:
    """Every intermediate tensor of one attention, (B, H, Lq, Lk) unless noted."""

    q: Tensor  # (B, H, Lq, D)
    k: Tensor  # (B, H, Lk, D), repeated for each query head
    v: Tensor  # (B, H, Lk, Dv), repeated for each query head
    allowed: Allowed  # True where a query may attend
    dots: Tensor  # q · k, both rotated by a rotary position
    scaled: Tensor  # dots times the scale
    scores: Tensor  # scaled, capped or modified, plus the bias; -inf if not allowed
    weights: Tensor  # softmax over keys and sink, without the sink; fully masked rows are 0
    logsumexp: Tensor  # (B, H, Lq), over keys and sink, -inf if there is neither
    output: Tensor  # (B, H, Lq, Dv), weights times v, plus the position's term


def reference(call: Call, dtype: torch.dtype = torch.float64) -> Steps:
    """Compute attention by its definition.

    Args:
        call: the attention, created by `Call.of`.
        dtype: the precision of the computation. The softmax runs in float32 at least.

    Raises:
        BadValue: if the call has dropout, since the reference is not random.
    """
    if call.dropout:
        raise BadValue(
            "dropout: expected 0 for the exact reference, got {dropout}", dropout=call.dropout
        )
    allowed = call.allowed().expand(call.shape.batch, call.shape.heads, -1, -1)
    q = call.q.to(dtype)  # (B, H, Lq, D)
    k = _seen(call.k.to(dtype).repeat_interleave(call.group, dim=1), allowed)  # (B, H, Lk, D)
    v = _seen(call.v.to(dtype).repeat_interleave(call.group, dim=1), allowed)  # (B, H, Lk, Dv)
    turned, against = call.position.content(q, k, call.shape)
    dots = turned @ against.transpose(-2, -1)  # (B, H, Lq, Lk)
    scaled = dots.to(softmax_dtype(dtype)) * call.scale
    bias, modified = _bias(call, q), _modified(call, scaled)
    biased = modified if bias is None else modified + bias.to(scaled.dtype)
    if call.sinks is None:
        weights, logsumexp = _softmax(biased, allowed)
    else:
        weights, logsumexp = _softmax(*_with_sinks(biased, allowed, call.sinks))
        weights = weights[..., :-1]
    mixed = weights.to(dtype) @ v
    added = call.position.values(weights.to(dtype), *call.position_ids())
    return Steps(
        q=q,
        k=k,
        v=v,
        allowed=allowed,
        dots=dots,
        scaled=scaled,
        scores=biased.masked_fill(~allowed, -torch.inf),
        weights=weights.to(dtype),
        logsumexp=logsumexp,
        output=mixed if added is None else mixed + added,
    )


def _modified(call: Call, scaled: Tensor) -> Tensor:
    """The scaled scores after the soft cap c · tanh(s / c) and the caller's ``score_mod``."""
    if call.softcap is not None:
        scaled = call.softcap * torch.tanh(scaled / call.softcap)
    if call.score_mod is None:
        return scaled
    b, h, query, key = call.shape.indices()
    return call.score_mod(scaled, b, h, query - call.shape.offset, key).to(scaled.dtype)


def _bias(call: Call, q: Tensor) -> Tensor | None:
    """Return the bias of the mask and the position on the scaled scores, pair by pair."""
    fixed = call.mask.bias(*call.shape.indices())
    moving = call.position.bias(q, *call.position_ids(), call.scale)
    if fixed is None or moving is None:
        return moving if fixed is None else fixed
    return fixed + moving


def _seen(rows: Tensor, allowed: Allowed) -> Tensor:
    """Set rows of keys or values that no query attends to to 0, even if they are NaN."""
    return torch.where(allowed.any(-2)[..., None], rows, torch.zeros_like(rows))


def _with_sinks(scores: Tensor, allowed: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores and allowed pairs (B, H, Lq, Lk + 1) with each head's sink as last column."""
    column = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
    return torch.cat((scores, column), -1), torch.cat((allowed, column > -torch.inf), -1)


def _softmax(scores: Tensor, allowed: Allowed) -> tuple[Tensor, Tensor]:
    """Return exp(s) / sum(exp(s)) over the allowed keys, 0 without any; and the logsumexp."""
    blind = ~allowed.any(-1, keepdim=True)
    known = torch.where(allowed, scores, -torch.inf)
    floor = torch.nn.functional.pad(known, (0, 1), value=-torch.inf)  # there may be no key at all
    peak = floor.amax(-1, keepdim=True).detach().masked_fill(blind, 0.0)
    raised = torch.where(allowed, torch.where(allowed, scores, 0.0) - peak, 0.0).exp()
    raised = torch.where(allowed, raised, 0.0)
    total = torch.where(blind, 1.0, raised.sum(-1, keepdim=True))
    logsumexp = (peak + total.log()).masked_fill(blind, -torch.inf)
    return raised / total, logsumexp[..., 0]
