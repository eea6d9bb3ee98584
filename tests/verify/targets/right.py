"""Correct multi-head attention modules in usual styles."""

import math

import torch
import torch.nn.functional as F
from torch import nn

MISTAKES = dict.fromkeys(
    (
        *("Separate", "Packed", "Einsum", "Heads", "Config", "Listed", "Raw", "PerHead"),
        *("function", "adapter"),
    ),
    (),
)
"""What is wrong with each: nothing."""


class Separate(nn.Module):
    """Four Linears, view and transpose; mask 0 = hidden."""

    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        batch, length, _ = x.size()
        return x.view(batch, length, self.num_heads, self.d_k).transpose(1, 2)

    def forward(self, q, k, v, mask=None):
        q, k, v = self.split(self.W_q(q)), self.split(self.W_k(k)), self.split(self.W_v(v))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = self.dropout(F.softmax(scores, dim=-1))
        out = torch.matmul(weights, v)
        batch, _, length, _ = out.size()
        out = out.transpose(1, 2).contiguous().view(batch, length, -1)
        return self.W_o(out), weights


class Packed(nn.Module):
    """One projection, chunked; a boolean mask that is True where hidden."""

    def __init__(self, dim, heads, bias=False):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attn = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        if mask is not None:
            attn = attn.masked_fill(mask, float("-inf"))
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


class Einsum(nn.Module):
    """Einsum on (B, L, H, D), arguments in another order, an additive mask."""

    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads, self.head_dim = heads, embed_size // heads
        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask=None):
        n, length = query.shape[:2]
        shape = (n, -1, self.heads, self.head_dim)
        v = self.values(values).reshape(shape)
        k = self.keys(keys).reshape(shape)
        q = self.queries(query).reshape(shape)
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k) / self.head_dim**0.5
        if mask is not None:
            energy = energy + mask
        attention = torch.softmax(energy, dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", attention, v).reshape(n, length, -1)
        return self.fc_out(out)


class Head(nn.Module):
    """One causal head."""

    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        length = x.shape[1]
        k, q, v = self.key(x), self.query(x), self.value(x)
        scores = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        scores = scores.masked_fill(self.tril[:length, :length] == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class Heads(nn.Module):
    """A list of heads."""

    def __init__(self, n_embd, num_heads, head_size, block_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, head_size, block_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


class Config(nn.Module):
    """Made from a config, causal through the fused kernel."""

    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.n_head, self.n_embd = config.n_head, config.n_embd
        self.dropout = config.dropout

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (y.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True
        )
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Listed(nn.Module):
    """A list of four linears, as the Annotated Transformer has it; the mask gets a head axis."""

    def __init__(self, h, d_model):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        n = query.size(0)
        query, key, value = [
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        ]
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        x = scores.softmax(dim=-1) @ value
        return self.linears[-1](x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k))


class Raw(nn.Module):
    """Raw parameters multiplied from the right, length first."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.w_q = nn.Parameter(torch.randn(d_model, d_model))
        self.w_k = nn.Parameter(torch.randn(d_model, d_model))
        self.w_v = nn.Parameter(torch.randn(d_model, d_model))
        self.w_o = nn.Parameter(torch.randn(d_model, d_model))

    def forward(self, x):
        length, batch, size = x.shape
        dim = size // self.n_heads

        def split(y):
            return y.view(length, batch * self.n_heads, dim).transpose(0, 1)

        q, k, v = split(x @ self.w_q), split(x @ self.w_k), split(x @ self.w_v)
        weights = torch.bmm(q, k.transpose(1, 2)).div(dim**0.5).softmax(-1)
        y = torch.bmm(weights, v).transpose(0, 1).reshape(length, batch, size)
        return y @ self.w_o


class PerHead(nn.Module):
    """Raw parameters with an axis for the heads; x and a context."""

    def __init__(self, d_model, heads, d_k):
        super().__init__()
        self.wq = nn.Parameter(torch.randn(heads, d_model, d_k))
        self.wk = nn.Parameter(torch.randn(heads, d_model, d_k))
        self.wv = nn.Parameter(torch.randn(heads, d_model, d_k))
        self.wo = nn.Parameter(torch.randn(heads, d_k, d_model))

    def forward(self, x, context):
        q = torch.einsum("ble,hed->bhld", x, self.wq)
        k = torch.einsum("ble,hed->bhld", context, self.wk)
        v = torch.einsum("ble,hed->bhld", context, self.wv)
        weights = torch.einsum("bhqd,bhkd->bhqk", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("bhqk,bhkd,hde->bqe", weights, v, self.wo)


class Shifting(Packed):
    """What it calls a mask is something else."""

    def forward(self, x, mask=None):
        if mask is not None:
            x = x + mask.float().mean()
        return super().forward(x)


def function(q, k, v, mask=None):
    """On heads already split; True = may attend."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1)
    return weights @ v, weights


class Strange(nn.Module):
    """A module whose parameters have no known names."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.alpha = nn.Linear(d_model, d_model)
        self.beta = nn.Linear(d_model, d_model)
        self.gamma = nn.Linear(d_model, d_model)
        self.delta = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        b, n, e = x.shape
        q, k, v = (
            m(x).view(b, n, self.heads, -1).transpose(1, 2)
            for m in (self.alpha, self.beta, self.gamma)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.delta(y.transpose(1, 2).reshape(b, n, e))


class Stranger(Strange):
    """Two attentions in one: nobody can say which projection is whose."""

    def __init__(self, d_model, heads):
        super().__init__(d_model, heads)
        self.more = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x, mask=None):
        b, n, e = x.shape
        q, k, v = (m(x).view(b, n, self.heads, -1).transpose(1, 2) for m in self.more)
        other = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return super().forward(x, mask) + other.transpose(1, 2).reshape(b, n, e)


def adapter(x, weights, heads, mask=None):
    """The adapter for Strange."""
    from torch.func import functional_call

    named = {
        "alpha.weight": weights.q,
        "alpha.bias": weights.q_bias,
        "beta.weight": weights.k,
        "beta.bias": weights.k_bias,
        "gamma.weight": weights.v,
        "gamma.bias": weights.v_bias,
        "delta.weight": weights.out,
        "delta.bias": weights.out_bias,
    }
    return functional_call(Strange(x.shape[-1], heads), named, (x, mask))
