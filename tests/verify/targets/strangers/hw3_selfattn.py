# CS 7xx, homework 3, part b
# Implement scaled dot-product multi-head self attention.

import torch
import torch.nn as nn


class MultiHeadSelfAttention(nn.Module):

    def __init__(self, d_model, n_heads, dropout=0.1):
        super(MultiHeadSelfAttention, self).__init__()
        assert d_model % n_heads == 0, "d_model must divide by n_heads"
        self.d_model = d_model
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        """
        x: (batch, seq, d_model)
        mask: (batch, seq) bool, True for real tokens
        """
        batch, seq, _ = x.shape
        # 1. project and split
        q = self.wq(x).reshape(batch, seq, self.n_heads, self.d_k).permute(0, 2, 1, 3)
        k = self.wk(x).reshape(batch, seq, self.n_heads, self.d_k).permute(0, 2, 1, 3)
        v = self.wv(x).reshape(batch, seq, self.n_heads, self.d_k).permute(0, 2, 1, 3)
        # 2. scaled dot product
        scores = torch.matmul(q, k.transpose(-1, -2))
        # 3. mask
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
        # 4. softmax
        attn = torch.softmax(scores, dim=-1)
        attn = self.dropout(attn)
        # 5. merge
        out = torch.matmul(attn, v)
        out = out.permute(0, 2, 1, 3).reshape(batch, seq, self.d_model)
        return self.wo(out)
