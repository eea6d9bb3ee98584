import torch
from torch import nn


class RoPE(nn.Module):
    """Rotary embedding, interleaved pairs (x0, x1), (x2, x3), ..."""

    def __init__(self, d, base=10_000):
        super().__init__()
        self.register_buffer("freq", base ** (-torch.arange(0, d, 2).float() / d), persistent=False)

    def forward(self, x, start=0):
        # x: (B, H, L, d)
        L = x.size(-2)
        pos = torch.arange(start, start + L, device=x.device, dtype=self.freq.dtype)
        ang = pos[:, None] * self.freq[None, :]
        c, s = ang.cos(), ang.sin()
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * c - odd * s, even * s + odd * c), dim=-1).flatten(-2)


class RotaryAttention(nn.Module):
    def __init__(self, dim: int, n_heads: int, head_dim: int = None):
        super().__init__()
        head_dim = head_dim or dim // n_heads
        if head_dim % 2:
            raise ValueError("rotary needs an even head_dim")
        self.n_heads, self.head_dim = n_heads, head_dim
        self.wq = nn.Linear(dim, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(dim, n_heads * head_dim, bias=False)
        self.wv = nn.Linear(dim, n_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, dim, bias=False)
        self.rope = RoPE(head_dim)

    def forward(self, x, valid=None):
        """valid: (B, L) bool, True for the frames that exist. Query i and key j see i - j."""
        B, L, _ = x.shape
        q, k, v = (w(x).view(B, L, self.n_heads, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q = self.rope(q)
        k = self.rope(k, start=1)
        m = None if valid is None else valid[:, None, None, :]
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m)
        return self.wo(y.transpose(1, 2).flatten(2))
