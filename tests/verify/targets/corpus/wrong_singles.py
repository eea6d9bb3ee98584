"""Attention modules with one mistake each, in usual styles."""

import math

import torch
import torch.nn.functional as F
from torch import nn

MISTAKES = {
    "HeadsWithoutScale": ("no_scale",),
    "FullWidthScale": ("scale_by_sqrt_embed",),
    "PlainSoftmax": ("softmax_over_heads",),
    "Bmm": ("softmax_over_queries",),
    "Viewed": ("split_without_transpose",),
    "Glued": ("merge_without_transpose",),
    "ValueFirst": ("order_v_k_q",),
    "NoOutput": ("output_missing",),
    "SeesNext": ("causal_one_ahead",),
    "Hides": ("mask_inverted",),
    "PadTen": ("mask_too_weak",),
    "SequenceFirst": ("batch_and_length_confused",),
    "minus_instead": (),
    "numpy_like": ("scale_by_dim",),
    "scaled_up": ("scale_multiplied",),
    "swapped": ("query_key_swapped",),
    "after": ("mask_after_softmax",),
    "times_mask": ("mask_filled_with_zero",),
    "sdpa_without_mask": ("mask_ignored",),
    "turned": ("mask_transposed",),
    "exponentials": ("softmax_without_max",),
    "overwrites": ("inputs_overwritten",),
}
UNKNOWN = ("minus_instead",)
"""Wrong in a way that is not in the catalogue."""


class Head(nn.Module):
    def __init__(self, dim, size):
        super().__init__()
        self.query = nn.Linear(dim, size, bias=False)
        self.key = nn.Linear(dim, size, bias=False)
        self.value = nn.Linear(dim, size, bias=False)

    def forward(self, x):
        weights = (self.query(x) @ self.key(x).transpose(1, 2)).softmax(dim=-1)
        return weights @ self.value(x)


class HeadsWithoutScale(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        size = embed_dim // num_heads
        self.heads = nn.ModuleList(Head(embed_dim, size) for _ in range(num_heads))
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        return self.out_proj(torch.cat([head(x) for head in self.heads], dim=-1))


class Attention(nn.Module):
    """What several of the wrong ones share."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def apart(self, t):
        return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)


class FullWidthScale(Attention):
    def forward(self, query, key, value):
        d_k = query.size(-1)
        q, k, v = (
            self.apart(lin(x)) for lin, x in zip(self.linears, (query, key, value), strict=False)
        )
        p = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(d_k), -1)
        return self.linears[3]((p @ v).transpose(1, 2).flatten(-2)), p


class PlainSoftmax(Attention):
    """(B, L, H, H): nn.Softmax(1) over what is the head axis."""

    def forward(self, x):
        q, k, v = (self.apart(lin(x)) for lin in self.linears[:3])
        p = nn.Softmax(1)(torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5)
        return self.linears[3](torch.einsum("bhqk,bhkd->bqhd", p, v).flatten(2))


class Bmm(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = (
            t.view(b, n, self.num_heads, -1).transpose(1, 2).reshape(b * self.num_heads, n, -1)
            for t in self.in_proj(x).chunk(3, dim=-1)
        )
        w = torch.bmm(q, k.mT).div(math.sqrt(q.size(-1))).softmax(1)
        y = torch.bmm(w, v).view(b, self.num_heads, n, -1)
        return self.out_proj(y.transpose(1, 2).reshape(b, n, e))


class Viewed(nn.Module):
    def __init__(self, hidden_dim, n_heads, dropout):
        super().__init__()
        self.n_heads = n_heads
        self.fc_q = nn.Linear(hidden_dim, hidden_dim)
        self.fc_k = nn.Linear(hidden_dim, hidden_dim)
        self.fc_v = nn.Linear(hidden_dim, hidden_dim)
        self.fc_o = nn.Linear(hidden_dim, hidden_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value):
        b, e = query.shape[0], query.shape[-1]
        d = e // self.n_heads
        q = self.fc_q(query).view(b, self.n_heads, -1, d)
        k = self.fc_k(key).view(b, self.n_heads, -1, d)
        v = self.fc_v(value).view(b, self.n_heads, -1, d)
        w = torch.softmax(torch.matmul(q, k.permute(0, 1, 3, 2)) / d**0.5, dim=-1)
        x = torch.matmul(self.dropout(w), v).permute(0, 2, 1, 3).contiguous()
        return self.fc_o(x.view(b, -1, e)), w


class Glued(Attention):
    def forward(self, x):
        q, k, v = (self.apart(lin(x)) for lin in self.linears[:3])
        y = F.scaled_dot_product_attention(q, k, v)
        return self.linears[3](y.contiguous().view(x.shape))


class ValueFirst(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.Wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        v, k, q = self.Wqkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class NoOutput(Attention):
    def forward(self, x):
        q, k, v = (self.apart(lin(x)) for lin in self.linears[:3])
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class SeesNext(Attention):
    def __init__(self, d_model, n_heads, max_len=64):
        super().__init__(d_model, n_heads)
        self.register_buffer("tril", torch.tril(torch.ones(max_len, max_len), diagonal=1))

    def forward(self, x):
        n = x.shape[1]
        q, k, v = (self.apart(lin(x)) for lin in self.linears[:3])
        s = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(self.tril[:n, :n] == 0, -1e9)
        return self.linears[3]((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Hides(Attention):
    def forward(self, x):
        n = x.shape[1]
        q, k, v = (self.apart(lin(x)) for lin in self.linears[:3])
        seen = torch.ones(n, n).triu(1)
        s = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(seen == 0, -torch.inf)
        s[..., -1, :] = 0
        w = s.softmax(-1)
        w = torch.cat((w[..., :-1, :], torch.zeros_like(w[..., -1:, :])), -2)
        return self.linears[3]((w @ v).transpose(1, 2).flatten(2))


class PadTen(Attention):
    def forward(self, x, padding_mask=None):
        q, k, v = (self.apart(lin(x)) for lin in self.linears[:3])
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if padding_mask is not None:
            s = s + padding_mask[:, None, None, :].float() * -10
        return self.linears[3]((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class SequenceFirst(nn.Module):
    """(B, L, E) given to a module that reads (L, B, E)."""

    def __init__(self, hidden_size, num_heads, batch_first=True):
        super().__init__()
        self.attention = nn.MultiheadAttention(hidden_size, num_heads)

    def forward(self, hidden_states):
        return self.attention(hidden_states, hidden_states, hidden_states, need_weights=False)[0]


def minus_instead(q, k, v):
    s = -torch.cdist(q, k) / math.sqrt(q.shape[-1])
    return s.softmax(-1) @ v


def numpy_like(Q, K, V):  # noqa: N803
    s = Q @ K.swapaxes(-1, -2) / Q.shape[-1]
    e = torch.exp(s - s.max(-1, keepdims=True).values)
    return e / e.sum(-1, keepdims=True) @ V


def scaled_up(q, k, v):
    return F.softmax(q @ k.mT * math.sqrt(k.shape[-1]), -1) @ v


def swapped(q, k, v):
    return F.softmax(torch.einsum("bhid,bhjd->bhji", q, k) / math.sqrt(k.shape[-1]), -1) @ v


def after(q, k, v, mask=None):
    w = F.softmax(q @ k.mT / math.sqrt(k.shape[-1]), -1)
    return (w if mask is None else torch.where(mask, w, 0)) @ v


def times_mask(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(k.shape[-1])
    return (s if mask is None else s * mask).softmax(-1) @ v


def sdpa_without_mask(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v)


def turned(q, k, v, mask=None):
    s = q @ k.mT / math.sqrt(k.shape[-1])
    return (s if mask is None else s.masked_fill(~mask.mT, -1e9)).softmax(-1) @ v


def exponentials(q, k, v):
    e = torch.einsum("bhqd,bhkd->bhqk", q, k).div(math.sqrt(q.shape[-1])).exp()
    return torch.einsum("bhqk,bhkd->bhqd", e / e.sum(-1, keepdim=True), v)


def overwrites(q, k, v):
    q.div_(math.sqrt(q.shape[-1]))
    return F.scaled_dot_product_attention(q, k, v, scale=1.0)
