"""Wrong multi-head attention modules; the name of each class is its mistake."""
# ruff: noqa: N801

import math

import torch
import torch.nn.functional as F
from torch import nn

MISTAKES = {
    name: (name,)
    for name in (
        *("no_scale", "scale_by_dim", "scale_by_sqrt_embed", "scale_multiplied"),
        *("query_key_swapped", "softmax_over_queries", "softmax_over_heads", "mask_inverted"),
        *("split_without_transpose", "merge_without_transpose", "heads_interleaved"),
        *("mask_ignored", "mask_after_softmax", "mask_filled_with_zero", "heads_averaged"),
        *("weight_not_transposed", "biases_dropped", "output_missing", "dropout_in_eval"),
        *("weights_detached", "causal_without_self", "causal_one_ahead", "order_k_v_q"),
        "batch_and_length_confused",
    )
} | {"no_scale_function": ("no_scale",), "unknown": (), "masked_scores_grow": ()}
UNKNOWN = ("unknown", "masked_scores_grow")
"""Wrong in a way that is not in the catalogue."""


class Base(nn.Module):
    """A right attention, one method a step, for the others to break."""

    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.h, self.d, self.e = num_heads, d_model // num_heads, d_model
        self.p = dropout
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def project(self, x):
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.h, self.d).transpose(1, 2)

    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / math.sqrt(self.d)

    def hide(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask, float("-inf"))

    def weigh(self, scores, mask):
        weights = self.hide(scores, mask).softmax(-1)
        return F.dropout(weights, self.p, self.training)

    def merge(self, y):
        return y.transpose(1, 2).reshape(y.shape[0], y.shape[2], self.e)

    def finish(self, y):
        return self.out_proj(y)

    def forward(self, x, mask=None):
        q, k, v = (self.split(y) for y in self.project(x))
        weights = self.weigh(self.scores(q, k), mask)
        return self.finish(self.merge(weights @ v))


class no_scale(Base):
    def scores(self, q, k):
        return q @ k.transpose(-2, -1)


class scale_by_dim(Base):
    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / self.d


class scale_by_sqrt_embed(Base):
    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / math.sqrt(self.e)


class scale_multiplied(Base):
    def scores(self, q, k):
        return q @ k.transpose(-2, -1) * math.sqrt(self.d)


class query_key_swapped(Base):
    def scores(self, q, k):
        return k @ q.transpose(-2, -1) / math.sqrt(self.d)


class softmax_over_queries(Base):
    def weigh(self, scores, mask):
        return self.hide(scores, mask).softmax(-2)


class softmax_over_heads(Base):
    def forward(self, x):
        q, k, v = (self.split(y) for y in self.project(x))
        return self.finish(self.merge(self.scores(q, k).softmax(1) @ v))


class split_without_transpose(Base):
    def split(self, x):
        return x.view(x.shape[0], self.h, x.shape[1], self.d)


class merge_without_transpose(Base):
    def merge(self, y):
        return y.reshape(y.shape[0], y.shape[2], self.e)


class heads_interleaved(Base):
    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.d, self.h).permute(0, 3, 1, 2)


class mask_ignored(Base):
    def hide(self, scores, mask):
        return scores


class mask_after_softmax(Base):
    def weigh(self, scores, mask):
        weights = scores.softmax(-1)
        return weights if mask is None else weights.masked_fill(~mask, 0)


class mask_filled_with_zero(Base):
    def hide(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask, 0)


class weight_not_transposed(Base):
    def project(self, x):
        layers = (self.q_proj, self.k_proj, self.v_proj)
        return tuple(x @ layer.weight + layer.bias for layer in layers)


class biases_dropped(Base):
    def project(self, x):
        layers = (self.q_proj, self.k_proj, self.v_proj)
        return tuple(x @ layer.weight.T for layer in layers)


class output_missing(Base):
    def finish(self, y):
        return y


class dropout_in_eval(Base):
    def weigh(self, scores, mask):
        return F.dropout(self.hide(scores, mask).softmax(-1), self.p)


class weights_detached(Base):
    def weigh(self, scores, mask):
        return super().weigh(scores, mask).detach()


class heads_averaged(Base):
    def merge(self, y):
        return y.mean(1).repeat(1, 1, self.h)


class causal_without_self(Base):
    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1]).tril(-1).bool()
        mask[0, 0] = True
        q, k, v = (self.split(y) for y in self.project(x))
        weights = self.weigh(self.scores(q, k), mask)
        weights = torch.cat((torch.zeros_like(weights[:, :, :1]), weights[:, :, 1:]), 2)
        return self.finish(self.merge(weights @ v))


class causal_one_ahead(Base):
    def forward(self, x):
        return super().forward(x, torch.ones(x.shape[1], x.shape[1]).tril(1).bool())


class order_k_v_q(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        b, n, e = x.shape
        k, v, q = (
            y.view(b, n, self.num_heads, -1).transpose(1, 2)
            for y in self.in_proj(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(y.transpose(1, 2).reshape(b, n, e))


class batch_and_length_confused(nn.Module):
    def __init__(self, embed_dim, num_heads, batch_first=False):
        super().__init__()
        self.inner = nn.MultiheadAttention(embed_dim, num_heads)

    def forward(self, x):
        return self.inner(x, x, x)[0]


class unknown(Base):
    """Nothing that is in the catalogue."""

    def scores(self, q, k):
        return super().scores(q, k).tanh()


def no_scale_function(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


class mask_inverted(Base):
    def forward(self, x):
        return super().forward(x, torch.ones(x.shape[1], x.shape[1]).tril() == 0)


class masked_scores_grow(Base):
    """Right without a mask; under one the scores grow: not in the catalogue."""

    def hide(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask, -torch.inf) * 1.5
