"""The steps of multi-head attention, one function per step; a mistake replaces some steps."""

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import softmax_dtype
from headwise.verify.oracle.jobs import Job, StepContext

STEPS = (
    *("project", "split", "group", "score", "scale", "mask"),
    *("softmax", "dropout", "mix", "merge", "output"),
)


Three = tuple[Tensor, Tensor, Tensor]


def project(context: StepContext, query: Tensor, key: Tensor, value: Tensor) -> Three:
    """Project the inputs, x Wᵀ + b, to (B, Lq, H D), (B, Lk, G D) and (B, Lk, G Dv)."""
    w = context.projections
    q = F.linear(query, w.q, w.q_bias)
    return q, F.linear(key, w.k, w.k_bias), F.linear(value, w.v, w.v_bias)


def split(_context: StepContext, x: Tensor, heads: int) -> Tensor:
    """Split (B, L, heads D) into (B, heads, L, D); head h is the h-th slice of the last axis."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def projected_heads(job: Job) -> Three:
    """Compute q (B, H, Lq, D), k (B, G, Lk, D) and v (B, G, Lk, Dv) of a job."""
    q, k, v = project(job.context, job.query, job.key, job.value)
    return (
        split(job.context, q, job.heads),
        split(job.context, k, job.groups),
        split(job.context, v, job.groups),
    )


def group(context: StepContext, shared: Tensor) -> Tensor:
    """Repeat keys or values (B, G, Lk, D) for every query head; 0 where no query may attend."""
    return torch.where(context.allowed.any(-2)[..., None], repeated(context, shared), 0.0)


def score(context: StepContext, q: Tensor, k: Tensor) -> Tensor:
    """Every query times every key, (B, H, Lq, Lk), rotated by a rotary position."""
    if context.position is not None:
        q, k = context.position.content(q, k, context.shape)
    return q @ k.transpose(-2, -1)


def scale(context: StepContext, dots: Tensor) -> Tensor:
    """Multiply the dot products by the scale, at least in float32."""
    return dots.to(softmax_dtype(dots.dtype)) * context.scale


def mask(context: StepContext, scaled: Tensor) -> Tensor:
    """Add the bias, and set the scores to -inf where a query may not attend."""
    return biased(context, scaled).masked_fill(~context.allowed, -torch.inf)


def softmax(context: StepContext, scores: Tensor) -> Tensor:
    """Compute the softmax over the keys; 0 in fully masked rows."""
    blind = ~context.allowed.any(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def dropout(context: StepContext, weights: Tensor) -> Tensor:
    """Drop weights at random in training."""
    return F.dropout(weights, context.dropout) if context.training and context.dropout else weights


def mix(_context: StepContext, weights: Tensor, v: Tensor) -> Tensor:
    """Compute the weighted sum of the values, (B, H, Lq, Dv)."""
    return weights.to(v.dtype) @ v


def merge(_context: StepContext, heads: Tensor) -> Tensor:
    """Concatenate the heads (B, H, Lq, Dv) to (B, Lq, H Dv)."""
    return heads.transpose(1, 2).flatten(-2)


def output(context: StepContext, merged: Tensor) -> Tensor:
    """Apply the output projection, (B, Lq, E)."""
    w = context.projections
    return merged if w.out is None else F.linear(merged, w.out, w.out_bias)


def joined_output(job: Job, heads: Tensor) -> Tensor:
    """Merge the head outputs (B, H, Lq, Dv) of a job and project them to (B, Lq, E)."""
    return output(job.context, merge(job.context, heads))


def biased(context: StepContext, scaled: Tensor) -> Tensor:
    """The scores plus the bias of the mask and of the position, before masking."""
    for bias in (context.bias, context.position_bias(scaled)):
        scaled = scaled if bias is None else scaled + bias.to(scaled.dtype)
    return scaled


def repeated(context: StepContext, shared: Tensor) -> Tensor:
    """Repeat keys or values for every query head, also where no query may attend."""
    return shared.repeat_interleave(context.shape.heads // max(context.groups, 1), dim=1)
