"""Attention modules with a residual connection, a norm, or a cache."""

import math

import torch
import torch.nn.functional as F
from torch import nn

MISTAKES = {
    "PostNorm": (),
    "PreNorm": (),
    "NormAlone": (),
    "Cached": (),
    "PostNormNoScale": ("no_scale",),
    "PreNormPair": ("no_scale", "merge_without_transpose"),
    "CachedOverQueries": ("softmax_over_queries",),
}


class PostNorm(nn.Module):
    """norm(x + attention(x)), as in the paper, in one module."""

    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model)
        self.temperature = d_k**0.5

    def forward(self, q, k, v, mask=None):
        residual = q
        (b, n), m = q.shape[:2], k.shape[1]
        q = self.w_qs(q).view(b, n, self.n_head, self.d_k).transpose(1, 2)
        k = self.w_ks(k).view(b, m, self.n_head, self.d_k).transpose(1, 2)
        v = self.w_vs(v).view(b, m, self.n_head, self.d_v).transpose(1, 2)
        scores = q / self.temperature @ k.transpose(2, 3)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        weights = self.dropout(F.softmax(scores, dim=-1))
        y = (weights @ v).transpose(1, 2).contiguous().view(b, n, -1)
        return self.layer_norm(self.fc(y) + residual), weights


class PostNormNoScale(PostNorm):
    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__(n_head, d_model, d_k, d_v, dropout)
        self.temperature = 1.0


class PreNorm(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.0))

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(y).chunk(3, -1)
        )
        return x + self.to_out(self.attend(q, k, v))

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)


class PreNormPair(PreNorm):
    def attend(self, q, k, v):
        y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return y.reshape(y.shape[0], y.shape[2], -1)


class NormAlone(PreNorm):
    """As in many vision transformers: the residual is somewhere else."""

    def forward(self, x):
        return super().forward(x) - x


class Cached(nn.Module):
    """Causal, and hands on its keys and values."""

    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.q_proj = nn.Linear(config.n_embd, config.n_embd)
        self.k_proj = nn.Linear(config.n_embd, config.n_embd)
        self.v_proj = nn.Linear(config.n_embd, config.n_embd)
        self.o_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x, past=None, use_cache=False):
        q, k, v = (
            m(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
            for m in (self.q_proj, self.k_proj, self.v_proj)
        )
        if past is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(past, (k, v), strict=True))
        n, m = q.shape[2], k.shape[2]
        seen = torch.ones(n, m, dtype=torch.bool).tril(m - n)
        scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~seen, -torch.inf)
        y = self.o_proj((self.normal(scores) @ v).transpose(1, 2).flatten(-2))
        return (y, (k, v)) if use_cache else (y, None)

    def normal(self, scores):
        return scores.softmax(-1)


class CachedOverQueries(Cached):
    def normal(self, scores):
        return scores.softmax(-2)
