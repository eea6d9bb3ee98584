"""Session-based recommendation, SASRec-like.

Sessions are LEFT padded, so the first positions of a short session are padding and,
with the causal mask, see no item at all. Such rows must come out as zeros
before the output layer (they are averaged over later).
"""
import torch
from torch import nn


class SessionAttention(nn.Module):
    def __init__(self, hidden_units, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.Q_w = nn.Linear(hidden_units, hidden_units)
        self.K_w = nn.Linear(hidden_units, hidden_units)
        self.V_w = nn.Linear(hidden_units, hidden_units)
        self.out = nn.Linear(hidden_units, hidden_units, bias=False)

    def forward(self, items, pad):
        """items (B, T, hidden_units); pad (B, T) bool, True at padding. A row that sees nothing gives zeros."""
        B, T, E = items.shape
        h, d = self.num_heads, E // self.num_heads
        Q = self.Q_w(items).view(B, T, h, d).transpose(1, 2)
        K = self.K_w(items).view(B, T, h, d).transpose(1, 2)
        V = self.V_w(items).view(B, T, h, d).transpose(1, 2)

        future = torch.ones(T, T, dtype=torch.bool, device=items.device).triu(1)
        hidden = future | pad[:, None, None, :]
        seen = ~hidden.all(-1, keepdim=True)

        scores = Q @ K.transpose(-1, -2) / d ** 0.5
        attn = scores.masked_fill(hidden, -float("inf")).softmax(-1)
        attn = attn * seen          # rows that see nothing
        y = (attn @ V).transpose(1, 2).reshape(B, T, E)
        return self.out(y)
