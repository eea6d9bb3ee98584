"""Grouped-query attention: three key/value heads for six query heads."""

import math

import torch.nn.functional as F
from torch import nn

MISTAKES = {
    "Grouped": (),
    "GroupedFused": (),
    "GroupedInTurn": ("heads_tiled",),
    "GroupedPair": ("heads_tiled", "no_scale"),
}
HEADS = 6
"""With three heads there is no group of two."""


class Grouped(nn.Module):
    """As in Llama: fewer key/value heads, written out for each query head."""

    def __init__(self, dim, n_heads, n_kv_heads=1):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, max(1, n_kv_heads // 2)
        size = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * size, bias=False)
        self.wk = nn.Linear(dim, self.n_kv_heads * size, bias=False)
        self.wv = nn.Linear(dim, self.n_kv_heads * size, bias=False)
        self.wo = nn.Linear(n_heads * size, dim, bias=False)

    def forward(self, x, mask=None):
        q = self.wq(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k, v = (
            self.repeated(m(x).unflatten(-1, (self.n_kv_heads, -1)).transpose(1, 2))
            for m in (self.wk, self.wv)
        )
        scores = self.scaled(q) @ k.transpose(-2, -1)
        if mask is not None:
            scores = scores + mask
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))

    def scaled(self, q):
        return q / math.sqrt(q.shape[-1])

    def repeated(self, x):
        return x.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)


class GroupedInTurn(Grouped):
    def repeated(self, x):
        return x.repeat(1, self.n_heads // self.n_kv_heads, 1, 1)


class GroupedPair(GroupedInTurn):
    def scaled(self, q):
        return q


class GroupedFused(Grouped):
    """Through the fused kernel, causal."""

    def forward(self, x):
        q = self.wq(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k, v = (
            m(x).unflatten(-1, (self.n_kv_heads, -1)).transpose(1, 2) for m in (self.wk, self.wv)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).flatten(-2))
