import math
import torch
from torch import nn


class BucketedSelfAttention(nn.Module):
    """
    Bidirectional self-attention with the T5 bucketed relative position bias.
    Unlike T5 the scores ARE scaled by 1/sqrt(d_kv); I don't use their init.
    """

    def __init__(self, d_model, num_heads, d_kv=None, num_buckets=32, max_distance=128):
        super().__init__()
        d_kv = d_kv or d_model // num_heads
        self.num_heads, self.d_kv = num_heads, d_kv
        self.num_buckets, self.max_distance = num_buckets, max_distance
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)

    def _bucket(self, rel):
        # rel = memory position - query position
        n = self.num_buckets // 2
        ret = (rel > 0).long() * n
        rel = rel.abs()
        max_exact = n // 2
        small = rel < max_exact
        large = max_exact + (
            torch.log(rel.float().clamp_min(1) / max_exact)
            / math.log(self.max_distance / max_exact) * (n - max_exact)
        ).long()
        large = large.clamp(max=n - 1)
        return ret + torch.where(small, rel, large)

    def compute_bias(self, qlen, klen):
        dev = self.relative_attention_bias.weight.device
        rel = torch.arange(klen, device=dev)[None, :] - torch.arange(qlen, device=dev)[:, None]
        return self.relative_attention_bias(self._bucket(rel)).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask=None):
        """mask: (batch, 1, 1, seq) with 1 for tokens and 0 for padding."""
        B, L, _ = hidden_states.size()

        def shape(t):
            return t.view(B, L, self.num_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = q @ k.transpose(3, 2) / math.sqrt(self.d_kv)
        bias = self.compute_bias(L, L)
        if mask is not None:
            bias = bias + (1.0 - mask.to(bias.dtype)) * torch.finfo(bias.dtype).min
        weights = torch.softmax(scores + bias, dim=-1)
        y = (weights @ v).transpose(1, 2).reshape(B, L, -1)
        return self.o(y)
