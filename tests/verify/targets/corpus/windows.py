"""Attention modules that always apply a window."""

import math

import torch
from torch import nn

MISTAKES = {
    "Banded": (),
    "Behind": (),
    "BandedNoScale": ("no_scale",),
    "BehindScaled": ("scale_by_sqrt_embed",),
}


class Banded(nn.Module):
    """Two neighbours on either side."""

    left, right = 2, 2

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(embed_dim, embed_dim)
        self.key = nn.Linear(embed_dim, embed_dim)
        self.value = nn.Linear(embed_dim, embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        q, k, v = (
            m(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for m in (self.query, self.key, self.value)
        )
        at = torch.arange(x.shape[1])
        far = at[:, None] - at
        seen = (far <= self.left) & (far >= -self.right)
        scores = (self.scaled(q) @ k.transpose(-2, -1)).masked_fill(~seen, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))

    def scaled(self, q):
        return q / math.sqrt(q.shape[-1])


class Behind(Banded):
    """Causal, and no further back than three."""

    left, right = 3, 0


class BandedNoScale(Banded):
    def scaled(self, q):
        return q


class BehindScaled(Behind):
    def scaled(self, q):
        return q / math.sqrt(self.query.in_features)
