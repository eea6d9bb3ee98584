"""Fused layouts, and functions whose mistakes are in no single step."""

import math

from torch import nn

MISTAKES = {
    "FusedByHead": (),
    "FusedByNumber": (),
    "in_place": ("inputs_overwritten",),
    "overflowing": ("softmax_without_max",),
}


class FusedByHead(nn.Module):
    """For each head its q, k and v, as in GPT-NeoX."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.o_proj = nn.Linear(embed_dim, embed_dim)

    def parts(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).chunk(3, -1)

    def forward(self, x):
        q, k, v = self.parts(self.qkv_proj(x))
        weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(-2))


class FusedByNumber(FusedByHead):
    """q, k and v take turns in the last axis."""

    def parts(self, x):
        return x.unflatten(-1, (self.num_heads, -1, 3)).transpose(1, 2).unbind(-1)


def squashed(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return (scores.softmax(-1) @ v).tanh()


def in_place(q, k, v):
    q *= 1 / math.sqrt(q.shape[-1])
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


class InPlace(FusedByHead):
    def forward(self, x):
        x += 1
        x -= 1
        return super().forward(x)


def overflowing(q, k, v):
    e = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).exp()
    return e / e.sum(-1, keepdim=True) @ v


def in_numpy(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1).matmul(v).detach().numpy()


def nothing(q, k, v):
    (q @ k.transpose(-2, -1)).softmax(-1).matmul(v)
