"""Multi-head latent attention (DeepSeek-V2) and differential attention, each a few lines on attend.

在 attend 之上用几行实现多头潜在注意力（DeepSeek-V2）和差分注意力。
"""

import math

import torch
from torch import Tensor, nn

import headwise as hw

E, H, D, ROPE, LATENT = 32, 4, 8, 4, 12
"""embed_dim, heads, the head dim without and with rotation, and the size of the latent."""


class LatentAttention(nn.Module):
    """Keys and values are made from one small latent of each token, which alone is cached.

    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1; c^KV there is the latent here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(E, H * (D + ROPE), bias=False)
        self.down = nn.Linear(E, LATENT + ROPE, bias=False)  # the latent, and the key to rotate
        self.norm = nn.RMSNorm(LATENT)
        self.up_k = nn.Parameter(torch.randn(H, D, LATENT) / LATENT**0.5)
        self.up_v = nn.Parameter(torch.randn(H, D, LATENT) / LATENT**0.5)
        self.out_proj = nn.Linear(H * D, E, bias=False)
        self.rotary = hw.Rotary(ROPE, pairs="neighbours")
        self.scale = (D + ROPE) ** -0.5

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q without and with rotation (B, H, L, ·), the latent (B, 1, L, ·) and the rotated key."""
        q = self.q_proj(x).unflatten(-1, (H, -1)).transpose(1, 2)
        latent, key = self.down(x)[:, None].split([LATENT, ROPE], -1)
        turned, key = self.rotary.content(q[..., D:], key, None)
        return q[..., :D], turned, self.norm(latent), key

    def forward(self, x: Tensor) -> Tensor:
        """With the keys and values of every head written out."""
        q, turned, latent, key = self.parts(x)
        k = torch.cat((latent @ self.up_k.mT, key.expand(-1, H, -1, -1)), -1)  # (B, H, L, D + ROPE)
        v = latent @ self.up_v.mT
        output = hw.attend(torch.cat((q, turned), -1), k, v, mask=hw.causal(), scale=self.scale)
        return self.out_proj(output.transpose(1, 2).flatten(2))

    def absorbed(self, x: Tensor) -> Tensor:
        """The same from the latent itself: one key and one value head for all query heads."""
        q, turned, latent, key = self.parts(x)
        q = torch.cat((q @ self.up_k, turned), -1)  # (B, H, L, LATENT + ROPE)
        k = torch.cat((latent, key), -1)  # all that a cache has to hold
        output = hw.attend(q, k, latent, mask=hw.causal(), scale=self.scale)
        return self.out_proj((output @ self.up_v.mT).transpose(1, 2).flatten(2))


def differential(q: Tensor, k: Tensor, v: Tensor, factor: Tensor | float) -> Tensor:
    """The difference of two attentions on halves of q and k, (B, H, L, 2 D), with shared values.

    (softmax(q1 k1ᵀ / sqrt(D)) - factor · softmax(q2 k2ᵀ / sqrt(D))) v, so that noise cancels.

    Source: Ye et al. 2024 (Differential Transformer), section 2.1; factor is lambda there.
    """
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    both = torch.cat((q1, q2), 1), torch.cat((k1, k2), 1), torch.cat((v, v), 1)
    first, second = hw.attend(*both, mask=hw.causal()).chunk(2, 1)
    return first - factor * second


if __name__ == "__main__":
    torch.manual_seed(0)
    layer, x = LatentAttention(), torch.randn(2, 9, E)
    error = (layer(x) - layer.absorbed(x)).abs().max()
    full, small = H * (D + ROPE + D), LATENT + ROPE
    print(f"latent: absorbed equals written out to {error:.0e}")
    print(f"        a cache holds {small} numbers a token, not {full}")
    q, k, v = (torch.randn(2, H, 9, n) for n in (2 * D, 2 * D, D))
    later = torch.ones(9, 9).triu(1).bool()
    maps = [
        (a @ b.mT / math.sqrt(D)).masked_fill(later, -math.inf).softmax(-1)
        for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
    ]
    error = (differential(q, k, v, 0.8) - (maps[0] - 0.8 * maps[1]) @ v).abs().max()
    print(f"differential: equals the difference of two softmaxes to {error:.0e}")
