"""Correct attention: with parameters, lists of heads, NumPy style, functions, packed, bmm."""

import math

import torch
import torch.nn.functional as F
from torch import nn

MISTAKES = {
    "TimmLike": (),
    "BatchSecond": (),
    "OneByOne": (),
    "ViaBmm": (),
    "EinsumPacked": (),
    "Cross": (),
    "KeyValuePacked": (),
    "FloatMask": (),
    "Tuple": (),
    "Causal": (),
    "Lazy": (),
    "by_hand": (),
    "by_einsum": (),
    "by_sdpa": (),
    "by_loop": (),
}


class TimmLike(nn.Module):
    def __init__(self, dim, num_heads=8, qkv_bias=False, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))


class BatchSecond(nn.Module):
    """(L, B, E), as fairseq has it."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value):
        tgt, bsz, dim = query.shape
        q = self.q_proj(query) * self.head_dim**-0.5
        k, v = self.k_proj(key), self.v_proj(value)
        q, k, v = (
            t.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
            for t in (q, k, v)
        )
        probs = F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1)
        attn = torch.bmm(probs, v).transpose(0, 1).contiguous().view(tgt, bsz, dim)
        return self.out_proj(attn), None


class OneByOne(nn.Module):
    """Each head is cut out of the projections and attended in a loop."""

    def __init__(self, emb_dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(emb_dim, emb_dim)
        self.key = nn.Linear(emb_dim, emb_dim)
        self.value = nn.Linear(emb_dim, emb_dim)
        self.out = nn.Linear(emb_dim, emb_dim)

    def forward(self, x):
        outs = []
        parts = (m(x).chunk(self.n_heads, -1) for m in (self.query, self.key, self.value))
        for q, k, v in zip(*parts, strict=True):
            s = torch.einsum("bqd,bkd->bqk", q, k) / math.sqrt(q.size(-1))
            outs.append(torch.softmax(s, -1) @ v)
        return self.out(torch.cat(outs, -1))


class ViaBmm(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.h = num_attention_heads
        self.Wq = nn.Linear(hidden_size, hidden_size, bias=False)
        self.Wk = nn.Linear(hidden_size, hidden_size, bias=False)
        self.Wv = nn.Linear(hidden_size, hidden_size, bias=False)
        self.Wo = nn.Linear(hidden_size, hidden_size, bias=False)

    def fold(self, t):
        b, n, e = t.shape
        return t.view(b, n, self.h, e // self.h).transpose(1, 2).reshape(b * self.h, n, -1)

    def forward(self, hidden_states):
        b, n, e = hidden_states.shape
        q, k, v = (self.fold(w(hidden_states)) for w in (self.Wq, self.Wk, self.Wv))
        p = torch.baddbmm(q.new_zeros(1), q, k.mT, beta=0, alpha=q.shape[-1] ** -0.5).softmax(2)
        return self.Wo(torch.bmm(p, v).view(b, self.h, n, -1).transpose(1, 2).reshape(b, n, e))


class EinsumPacked(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_qkv = nn.Linear(dim, 3 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.to_qkv(x).chunk(3, dim=-1))
        dots = torch.einsum("bihd,bjhd->bhij", q, k) * self.scale
        out = torch.einsum("bhij,bjhd->bihd", dots.softmax(dim=-1), v)
        return self.to_out(out.flatten(2))


class Cross(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.nhead = nhead
        self.query_proj = nn.Linear(d_model, d_model)
        self.key_proj = nn.Linear(d_model, d_model)
        self.value_proj = nn.Linear(d_model, d_model)
        self.output_proj = nn.Linear(d_model, d_model)

    def forward(self, x, context):
        b, _, e = x.shape
        shape = b, -1, self.nhead, e // self.nhead
        q = self.query_proj(x).reshape(shape).permute(0, 2, 1, 3)
        k = self.key_proj(context).reshape(shape).permute(0, 2, 3, 1)
        v = self.value_proj(context).reshape(shape).permute(0, 2, 1, 3)
        a = torch.softmax(q @ k / (e // self.nhead) ** 0.5, dim=-1)
        return self.output_proj((a @ v).permute(0, 2, 1, 3).reshape(b, -1, e))


class KeyValuePacked(nn.Module):
    """Raw parameters as F.linear takes them."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.randn(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.randn(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).split(e, -1)
        q, k, v = (t.view(b, n, self.num_heads, -1).transpose(1, 2) for t in (q, k, v))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FloatMask(nn.Module):
    """1 = may attend, a float, as Keras and BERT have it."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.depth, self.num_heads = d_model // num_heads, num_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.dense = nn.Linear(d_model, d_model)

    def split_heads(self, x):
        return x.reshape(x.size(0), -1, self.num_heads, self.depth).permute(0, 2, 1, 3)

    def forward(self, q, k, v, mask=None):
        q, k, v = (
            self.split_heads(self.wq(q)),
            self.split_heads(self.wk(k)),
            self.split_heads(self.wv(v)),
        )
        logits = torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(self.depth)
        if mask is not None:
            logits = logits + (1.0 - mask.float()) * -1e9
        weights = torch.softmax(logits, dim=-1)
        out = (
            torch.matmul(weights, v)
            .permute(0, 2, 1, 3)
            .reshape(q.size(0), -1, self.num_heads * self.depth)
        )
        return self.dense(out), weights


class Tuple(TimmLike):
    """Returns more than the output."""

    def forward(self, x):
        return {"hidden": super().forward(x), "past": None}


class Causal(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        blocked = torch.triu(torch.ones(context_length, context_length), diagonal=1)
        self.register_buffer("mask", blocked)

    def forward(self, x):
        b, n, _ = x.shape
        keys, queries, values = self.W_key(x), self.W_query(x), self.W_value(x)
        keys, queries, values = (
            t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
            for t in (keys, queries, values)
        )
        scores = queries @ keys.transpose(2, 3)
        scores.masked_fill_(self.mask.bool()[:n, :n], -torch.inf)
        weights = self.dropout(torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1))
        return self.out_proj((weights @ values).transpose(1, 2).reshape(b, n, self.d_out))


class Lazy(nn.Module):
    """Layers that find out their sizes when they are called first, as in d2l."""

    def __init__(self, num_hiddens, num_heads, dropout=0.0, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
        self.W_q = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_k = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_v = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_o = nn.LazyLinear(num_hiddens, bias=bias)

    def forward(self, queries, keys, values, valid_lens):
        q, k, v = (
            m(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for m, x in ((self.W_q, queries), (self.W_k, keys), (self.W_v, values))
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if valid_lens is not None:
            padded = torch.arange(k.shape[2]) >= valid_lens[:, None]
            scores = scores.masked_fill(padded[:, None, None], -1e6)
        y = self.dropout(scores.softmax(-1)) @ v
        return self.W_o(y.transpose(1, 2).flatten(-2))


def by_hand(query, key, value):
    d = query.size(-1)
    e = torch.matmul(query, key.transpose(-1, -2)).div(math.sqrt(d))
    e = torch.exp(e - e.amax(-1, keepdim=True))
    return torch.matmul(e / e.sum(-1, keepdim=True), value)


def by_einsum(q, k, v, mask=None):
    s = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        s = torch.where(mask, s, torch.finfo(s.dtype).min)
    return torch.einsum("bhqk,bhkd->bhqd", s.softmax(-1), v)


def by_sdpa(q, k, v, attn_mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)


def by_loop(q, k, v):
    rows = []
    for i in range(q.shape[2]):
        w = torch.softmax((q[:, :, i : i + 1] * k).sum(-1) / math.sqrt(k.shape[-1]), -1)
        rows.append((w[..., None] * v).sum(2))
    return torch.stack(rows, 2)
