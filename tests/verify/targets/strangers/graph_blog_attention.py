import torch.nn as nn
import torch


class Attention(nn.Module):
    """The attention layer from my post "Transformers for people who know CNNs"."""

    def __init__(self, dim, num_heads=4, qkv_bias=True):
        super().__init__()
        self.h = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.kv = nn.Linear(dim, dim * 2, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        B, N, C = x.shape
        q = self.q(x).reshape(B, N, self.h, C // self.h).permute(0, 2, 1, 3)
        kv = self.kv(x).reshape(B, N, 2, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        k, v = kv[0], kv[1]

        attn = (q @ k.transpose(-2, -1)) * self.scale     # B, h, N, N
        attn = self.softmax(attn)

        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)
