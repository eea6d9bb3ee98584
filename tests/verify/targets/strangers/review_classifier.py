"""Sentiment of reviews: small transformer encoder."""
import math
import torch
import torch.nn as nn


class ReviewAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.depth = d_model // num_heads
        self.query_dense = nn.Linear(d_model, d_model)
        self.key_dense = nn.Linear(d_model, d_model)
        self.value_dense = nn.Linear(d_model, d_model)
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        """
        x     [B, T, d_model]
        mask  [B, 1, 1, T] float: 1.0 for a word, 0.0 for padding
        """
        B, T, d = x.shape
        q = self.query_dense(x).view(B, T, self.num_heads, self.depth).transpose(1, 2)
        k = self.key_dense(x).view(B, T, self.num_heads, self.depth).transpose(1, 2)
        v = self.value_dense(x).view(B, T, self.num_heads, self.depth).transpose(1, 2)

        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.depth)
        if mask is not None:
            mask = mask.sub_(1.0).mul_(1e9)     # 1 -> 0, 0 -> -1e9
            scores = scores + mask
        weights = scores.softmax(dim=-1)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous().view(B, T, d)
        return self.dense(out)


class ReviewClassifier(nn.Module):
    def __init__(self, vocab=5000, d_model=64, num_heads=4, layers=1):
        super().__init__()
        self.emb = nn.Embedding(vocab, d_model, padding_idx=0)
        self.att = nn.ModuleList([ReviewAttention(d_model, num_heads) for _ in range(layers)])
        self.out = nn.Linear(d_model, 2)

    def forward(self, ids):
        x = self.emb(ids)
        m = (ids != 0).float()[:, None, None, :]
        for a in self.att:
            x = x + a(x, m)
        return self.out(x.mean(1))
