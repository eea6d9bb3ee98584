"""The steps of multi-head attention, one function each, in the dtype they are given.

Each takes ``at``, which holds what is the same for all of them, and the tensors it works on. A
mistake replaces one or two of these functions by wrong ones.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import softmax_dtype
from headwise.masks import Mask
from headwise.shapes import Allowed, AttentionShape
from headwise.verify.oracle.jobs import Weights

STEPS = (
    "project",
    "split",
    "group",
    "score",
    "scale",
    "mask",
    "softmax",
    "dropout",
    "mix",
    "merge",
    "output",
)
"""The steps in the order they run; each is a function of this file."""


@dataclass(frozen=True, eq=False)
class At:
    """What every step may look at.

    Attributes:
        frame: B, H, Lq, Lk and where the first query stands.
        mask: the mask, not resolved.
        scale: the right factor on the scores.
        embed_dim: E.
        groups: G.
        dropout: the probability, as configured.
        training: whether dropout acts.
        weights: the projections, or None where an attention is run without them.
    """

    frame: AttentionShape
    mask: Mask
    scale: float
    embed_dim: int
    groups: int
    dropout: float = 0.0
    training: bool = False
    weights: Weights | None = None

    @cached_property
    def allowed(self) -> Allowed:
        """True where a query may attend, (B, H, Lq, Lk)."""
        dense = self.mask.dense(self.frame)
        return dense.expand(self.frame.batch, self.frame.heads, -1, -1)

    @cached_property
    def bias(self) -> Tensor | None:
        """What the mask adds to the scores, or None."""
        return self.mask.resolve(self.frame).bias(*self.frame.indices())

    @property
    def projections(self) -> Weights:
        """The projections of a run that has them."""
        if self.weights is None:
            raise RuntimeError("steps: this run has no projections")
        return self.weights


def project(at: At, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x Wᵀ + b three times: (B, Lq, H D), (B, Lk, G D), (B, Lk, G Dv)."""
    w = at.projections
    q = F.linear(query, w.q, w.q_bias)
    return q, F.linear(key, w.k, w.k_bias), F.linear(value, w.v, w.v_bias)


def split(at: At, x: Tensor, heads: int) -> Tensor:
    """(B, L, heads D) to (B, heads, L, D); head h is the h-th slice of the last axis."""
    del at
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def group(at: At, shared: Tensor) -> Tensor:
    """Keys or values (B, G, Lk, D) for every query head, 0 in the rows that no query sees."""
    return torch.where(at.allowed.any(-2)[..., None], repeated(at, shared), 0.0)


def score(at: At, q: Tensor, k: Tensor) -> Tensor:
    """Every query times every key, (B, H, Lq, Lk)."""
    del at
    return q @ k.transpose(-2, -1)


def scale(at: At, dots: Tensor) -> Tensor:
    """The dots times the scale, in float32 at least."""
    return dots.to(softmax_dtype(dots.dtype)) * at.scale


def mask(at: At, scaled: Tensor) -> Tensor:
    """The bias added, and -inf where a query may not attend."""
    return biased(at, scaled).masked_fill(~at.allowed, -torch.inf)


def softmax(at: At, scores: Tensor) -> Tensor:
    """Softmax over the keys; the row of a query that sees none is 0."""
    blind = ~at.allowed.any(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def dropout(at: At, weights: Tensor) -> Tensor:
    """Weights dropped while training."""
    return F.dropout(weights, at.dropout) if at.training and at.dropout else weights


def mix(at: At, weights: Tensor, v: Tensor) -> Tensor:
    """The weighted sum of the values, (B, H, Lq, Dv)."""
    del at
    return weights.to(v.dtype) @ v


def merge(at: At, heads: Tensor) -> Tensor:
    """(B, H, Lq, Dv) to (B, Lq, H Dv), heads side by side."""
    del at
    return heads.transpose(1, 2).flatten(-2)


def output(at: At, merged: Tensor) -> Tensor:
    """The output projection, (B, Lq, E)."""
    w = at.projections
    return merged if w.out is None else F.linear(merged, w.out, w.out_bias)


def biased(at: At, scaled: Tensor) -> Tensor:
    """The scores with the mask's bias, before anything is blocked."""
    return scaled if at.bias is None else scaled + at.bias.to(scaled.dtype)


def repeated(at: At, shared: Tensor) -> Tensor:
    """Keys or values for every query head, whatever stands in rows that no query sees."""
    return shared.repeat_interleave(at.frame.heads // max(at.groups, 1), dim=1)
