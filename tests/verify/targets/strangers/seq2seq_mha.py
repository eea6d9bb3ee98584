# Multi-head attention, time-major as in the rest of this toolkit.

import torch
import torch.nn.functional as F
from torch import nn


class MultiheadAttention(nn.Module):
    """Inputs are Time x Batch x Channel."""

    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True, kdim=None, vdim=None):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == embed_dim, "embed_dim must be divisible by num_heads"
        self.scaling = self.head_dim ** -0.5

        self.k_proj = nn.Linear(kdim or embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(vdim or embed_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self):
        for p in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(p.weight, gain=2 ** -0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None, need_weights=True):
        """
        Args:
            key_padding_mask (ByteTensor, optional): (batch, src_len), where padding
                elements are indicated by 1s.
            attn_mask (Tensor, optional): (tgt_len, src_len), added to the scores.
            need_weights (bool): also give the weights, averaged over heads
                (batch, tgt_len, src_len).
        """
        tgt_len, bsz, embed_dim = query.size()
        src_len = key.size(0)
        assert embed_dim == self.embed_dim, f"query dim {embed_dim} != {self.embed_dim}"
        assert key.size(1) == value.size(1) == bsz

        q = self.q_proj(query)
        q *= self.scaling
        k = self.k_proj(key)
        v = self.v_proj(value)

        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)

        attn_weights = torch.bmm(q, k.transpose(1, 2))
        assert list(attn_weights.size()) == [bsz * self.num_heads, tgt_len, src_len]

        if attn_mask is not None:
            attn_weights += attn_mask.unsqueeze(0)

        if key_padding_mask is not None:
            attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, src_len)
            attn_weights = attn_weights.masked_fill(
                key_padding_mask.unsqueeze(1).unsqueeze(2).to(torch.bool), float("-inf"))
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, src_len)

        attn_weights = F.softmax(attn_weights, dim=-1)
        attn_probs = F.dropout(attn_weights, p=self.dropout, training=self.training)

        attn = torch.bmm(attn_probs, v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        attn = self.out_proj(attn)

        if need_weights:
            avg = attn_weights.view(bsz, self.num_heads, tgt_len, src_len).mean(dim=1)
            return attn, avg
        return attn, None
