import torch
import torch.nn as nn


class WindowAttention1D(nn.Module):
    """Attention within a window of `window` samples, with a learned bias for
    every offset and head (as in Swin, but for signals).

    x: (num_windows * B, window, dim)
    """

    def __init__(self, dim, window, num_heads, qkv_bias=True, attn_drop=0., proj_drop=0.):
        super().__init__()
        self.dim = dim
        self.window = window
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5

        self.offset_bias = nn.Parameter(torch.zeros(2 * window - 1, num_heads))
        nn.init.trunc_normal_(self.offset_bias, std=.5)
        i = torch.arange(window)
        self.register_buffer("offset_index", i[:, None] - i[None, :] + window - 1)

        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]

        q = q * self.scale
        attn = q @ k.transpose(-2, -1)
        bias = self.offset_bias[self.offset_index].permute(2, 0, 1)
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)

        x = (attn @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj_drop(self.proj(x))
