"""Attention modules with two mistakes each, in different styles."""

import math

import torch
import torch.nn.functional as F
from torch import nn

MISTAKES = {
    "ScaleAndView": ("scale_by_sqrt_embed", "split_without_transpose"),
    "NoScaleAndMerge": ("no_scale", "merge_without_transpose"),
    "MatmulWeights": ("weight_not_transposed", "biases_dropped"),
    "OutputRaw": ("output_weight_not_transposed", "scale_by_dim"),
    "QueryAxis": ("softmax_over_queries", "no_scale"),
    "HeadAxis": ("softmax_over_heads", "scale_by_sqrt_embed"),
    "Interleaved": ("heads_interleaved", "no_scale"),
    "KeyFirst": ("order_k_v_q", "scale_by_dim"),
    "Unfinished": ("output_missing", "scale_multiplied"),
    "NoBiasAnywhere": ("biases_dropped", "output_bias_dropped"),
    "AveragedUnscaled": ("heads_averaged", "no_scale"),
    "ViewTwice": ("split_without_transpose", "merge_without_transpose"),
    "CausalUnscaled": ("causal_one_ahead", "no_scale"),
    "MaskLate": ("mask_after_softmax", "no_scale"),
    "MaskZero": ("mask_filled_with_zero", "scale_by_sqrt_embed"),
    "MaskUnused": ("mask_ignored", "scale_by_dim"),
    "rows_and_scale": ("softmax_over_queries", "scale_by_dim"),
    "keys_times_queries": ("query_key_swapped", "no_scale"),
    "weak_and_unscaled": ("mask_too_weak", "no_scale"),
}


class ScaleAndView(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.n, self.dim = num_heads, dim
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, e = x.shape
        q, k, v = (f(x).view(b, self.n, t, e // self.n) for f in (self.q, self.k, self.v))
        w = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.dim), -1)
        return self.o((w @ v).transpose(1, 2).reshape(b, t, e))


class NoScaleAndMerge(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads = heads
        self.queries = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.values = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, x):
        n, length, e = x.shape
        q = self.queries(x).reshape(n, length, self.heads, -1)
        k = self.keys(x).reshape(n, length, self.heads, -1)
        v = self.values(x).reshape(n, length, self.heads, -1)
        attention = torch.einsum("nqhd,nkhd->nhqk", q, k).softmax(3)
        out = torch.einsum("nhql,nlhd->nhqd", attention, v)
        return self.fc_out(out.reshape(n, length, e))


class MatmulWeights(nn.Module):
    """The weights of nn.Linear used as if they were (in, out)."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, e = x.shape
        q, k, v = (
            (x @ w.weight).view(b, t, self.n_heads, -1).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.wo(y.transpose(1, 2).reshape(b, t, e))


class OutputRaw(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads, self.head_size = num_heads, hidden_size // num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x):
        return x.view(*x.shape[:2], self.num_heads, self.head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))
        probs = nn.Softmax(dim=-1)(q @ k.transpose(-1, -2) / self.head_size)
        context = (probs @ v).permute(0, 2, 1, 3).contiguous()
        context = context.view(*context.shape[:2], -1)
        return context.matmul(self.output.weight) + self.output.bias


class Packed(nn.Module):
    """What several of the wrong ones share: one projection."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def parts(self, x):
        return [t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]


class QueryAxis(Packed):
    def forward(self, x):
        q, k, v = self.parts(x)
        attn = F.softmax(q @ k.mT, dim=2)
        return self.proj((attn @ v).transpose(1, 2).flatten(2))


class HeadAxis(Packed):
    def forward(self, x):
        q, k, v = self.parts(x)
        attn = F.softmax(q @ k.mT / x.shape[-1] ** 0.5, dim=1)
        return self.proj((attn @ v).transpose(1, 2).flatten(2))


class Interleaved(nn.Module):
    """einops' '(d h)' where '(h d)' is meant."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (-1, self.heads)).permute(0, 3, 1, 2)
            for f in (self.to_q, self.to_k, self.to_v)
        )
        out = torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class KeyFirst(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        k, v, q = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = F.softmax((q @ k.transpose(-2, -1)) / k.size(-1), dim=-1)
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))


class Unfinished(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, q, k, v):
        q, k, v = (
            w(t).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for w, t in ((self.W_q, q), (self.W_k, k), (self.W_v, v))
        )
        scores = q @ k.transpose(2, 3) * math.sqrt(q.shape[-1])
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class NoBiasAnywhere(Unfinished):
    def forward(self, q, k, v):
        q, k, v = (
            F.linear(t, w.weight).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for w, t in ((self.W_q, q), (self.W_k, k), (self.W_v, v))
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return F.linear(y, self.W_o.weight)


class AveragedUnscaled(Packed):
    def forward(self, x):
        q, k, v = self.parts(x)
        y = ((q @ k.mT).softmax(-1) @ v).mean(dim=1)
        return self.proj(y.repeat(1, 1, self.heads))


class ViewTwice(Packed):
    """Views all the way."""

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = (t.reshape(b, self.heads, n, -1) for t in self.qkv(x).chunk(3, -1))
        w = (q @ k.mT / math.sqrt(e // self.heads)).softmax(-1)
        return self.proj((w @ v).reshape(b, n, e))


class CausalUnscaled(Packed):
    def forward(self, x):
        q, k, v = self.parts(x)
        n = x.shape[1]
        hidden = torch.ones(n, n).triu(2).bool()
        w = (q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1)
        return self.proj((w @ v).transpose(1, 2).flatten(2))


class MaskLate(Packed):
    def forward(self, x, mask=None):
        q, k, v = self.parts(x)
        w = (q @ k.mT).softmax(-1)
        if mask is not None:
            w = w * mask
        return self.proj((w @ v).transpose(1, 2).flatten(2))


class MaskZero(Packed):
    def forward(self, x, mask=None):
        q, k, v = self.parts(x)
        s = q @ k.mT / math.sqrt(x.shape[-1])
        if mask is not None:
            s = s * mask
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class MaskUnused(Packed):
    def forward(self, x, mask=None):
        q, k, v = self.parts(x)
        s = q @ k.mT / q.shape[-1]
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


def rows_and_scale(q, k, v):
    return torch.softmax(q @ k.mT / k.shape[-1], dim=-2) @ v


def keys_times_queries(q, k, v):
    return torch.softmax(k @ q.mT, -1) @ v


def weak_and_unscaled(q, k, v, mask=None):
    s = q @ k.mT
    if mask is not None:
        s = s.masked_fill(mask == 0, -5.0)
    return s.softmax(-1) @ v
