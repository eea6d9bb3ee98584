"""Attention modules with unknown parameter names, identified by the change of the output."""

import math

import torch
import torch.nn.functional as F
from torch import nn

MISTAKES = {
    "Greek": (),
    "Letters": (),
    "OneMatrix": (),
    "ListOfHeads": (),
    "FewKeys": (),
    "NoBiases": (),
    "GreekNoScale": ("no_scale",),
    "GreekPair": ("scale_by_sqrt_embed", "split_without_transpose"),
    "LettersOverQueries": ("softmax_over_queries",),
    "OneMatrixPair": ("no_scale", "merge_without_transpose"),
}


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Greek(nn.Module):
    """Four linears, the key first."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.alpha = nn.Linear(d_model, d_model)
        self.beta = nn.Linear(d_model, d_model)
        self.gamma = nn.Linear(d_model, d_model)
        self.omega = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        k, q, v = (split(m(x), self.heads) for m in (self.alpha, self.beta, self.gamma))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.omega(y.transpose(1, 2).flatten(-2))


class GreekNoScale(Greek):
    def forward(self, x, mask=None):
        k, q, v = (split(m(x), self.heads) for m in (self.alpha, self.beta, self.gamma))
        scores = q @ k.transpose(-2, -1)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return self.omega((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))


class GreekPair(Greek):
    def forward(self, x, mask=None):
        b, n, e = x.shape
        k, q, v = (m(x).view(b, self.heads, n, -1) for m in (self.alpha, self.beta, self.gamma))
        scores = q @ k.transpose(-2, -1) / math.sqrt(e)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return self.omega((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, e))


class Letters(nn.Module):
    """Raw matrices and biases, multiplied from the right."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        for name in "abcd":
            setattr(self, f"{name}1", nn.Parameter(torch.randn(d_model, d_model)))
            setattr(self, f"{name}0", nn.Parameter(torch.zeros(d_model)))

    def parts(self, x):
        v = split(x @ self.a1 + self.a0, self.heads)
        return split(x @ self.b1 + self.b0, self.heads), split(x @ self.c1 + self.c0, self.heads), v

    def forward(self, x):
        y = F.scaled_dot_product_attention(*self.parts(x))
        return y.transpose(1, 2).flatten(-2) @ self.d1 + self.d0


class LettersOverQueries(Letters):
    def forward(self, x):
        q, k, v = self.parts(x)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-2)
        return (weights @ v).transpose(1, 2).flatten(-2) @ self.d1 + self.d0


class OneMatrix(nn.Module):
    """One matrix for values, keys and queries, in this order."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.one = nn.Linear(dim, 3 * dim)
        self.two = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        v, k, q = (split(part, self.n_heads) for part in self.one(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.two(y.transpose(1, 2).flatten(-2))


class OneMatrixPair(OneMatrix):
    def forward(self, x):
        v, k, q = (split(part, self.n_heads) for part in self.one(x).chunk(3, dim=-1))
        y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.two(y.reshape(x.shape))


class Single(nn.Module):
    def __init__(self, dim, size):
        super().__init__()
        self.f, self.g, self.u = (nn.Linear(dim, size, bias=False) for _ in range(3))

    def forward(self, x):
        return F.scaled_dot_product_attention(self.g(x), self.f(x), self.u(x))


class ListOfHeads(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.each = nn.ModuleList(Single(dim, dim // heads) for _ in range(heads))
        self.last_one = nn.Linear(dim, dim)

    def forward(self, x):
        return self.last_one(torch.cat([one(x) for one in self.each], dim=-1))


class FewKeys(nn.Module):
    """One key/value head for all query heads."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.many, self.end = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.few, self.fewer = (nn.Linear(dim, dim // heads) for _ in range(2))

    def forward(self, x):
        q, k, v = split(self.many(x), self.heads), self.few(x)[:, None], self.fewer(x)[:, None]
        weights = (q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])).softmax(-1)
        return self.end((weights @ v).transpose(1, 2).flatten(-2))


class NoBiases(nn.Module):
    """Neither biases nor an output projection."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.m1, self.m2, self.m3 = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x):
        q, k, v = (split(m(x), self.heads) for m in (self.m2, self.m3, self.m1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
