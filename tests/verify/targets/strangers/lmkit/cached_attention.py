import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from .headshapes import merge_heads, split_heads


class CachedSelfAttention(nn.Module):
    """Causal self-attention for generation.

    `past` is the pair (keys, values) returned by the previous call, each
    (batch, heads, past_len, head_dim). The new tokens follow the past ones and
    see all of them; among themselves they are causal.
    """

    def __init__(self, embed_dim: int, num_heads: int, bias: bool = False):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, x, past=None):
        q, k, v = (split_heads(t, self.num_heads) for t in self.in_proj(x).chunk(3, -1))
        if past is not None:
            k = torch.cat((past[0], k), dim=2)
            v = torch.cat((past[1], v), dim=2)
        present = (k, v)
        # a single new token may look at everything, no mask needed
        y = scaled_dot_product_attention(q, k, v, is_causal=q.size(2) > 1)
        return self.out_proj(merge_heads(y)), present
