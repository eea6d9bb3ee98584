import torch
from torch import nn, einsum


def exists(v):
    return v is not None


def default(v, d):
    return v if exists(v) else d


class CrossAttention(nn.Module):
    def __init__(self, query_dim, context_dim=None, heads=8, dim_head=64, dropout=0.):
        super().__init__()
        inner_dim = dim_head * heads
        context_dim = default(context_dim, query_dim)

        self.scale = dim_head ** -0.5
        self.heads = heads

        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(context_dim, inner_dim * 2, bias=False)
        self.to_out = nn.Sequential(
            nn.Linear(inner_dim, query_dim),
            nn.Dropout(dropout)
        )

    def forward(self, x, context=None, mask=None):
        h = self.heads
        b, n, _ = x.shape

        q = self.to_q(x)
        context = default(context, x)
        k, v = self.to_kv(context).chunk(2, dim=-1)

        # 'b n (h d) -> (b h) n d'
        q, k, v = map(lambda t: t.reshape(b, -1, h, t.shape[-1] // h).transpose(1, 2).flatten(0, 1), (q, k, v))

        sim = einsum('b i d, b j d -> b i j', q, k) * self.scale

        if exists(mask):
            # mask: (b, j), True = keep
            mask = mask.bool().reshape(b, -1)
            max_neg_value = -torch.finfo(sim.dtype).max
            mask = mask.repeat_interleave(h, dim=0)[:, None, :]
            sim = sim.masked_fill(~mask, max_neg_value)

        attn = sim.softmax(dim=-1)
        out = einsum('b i j, b j d -> b i d', attn, v)
        out = out.reshape(b, h, n, -1).transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)
