from typing import Optional, Tuple
from torch import Tensor, nn
import torch


class AudioAttention(nn.Module):
    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x: Tensor, xa: Optional[Tensor] = None, mask: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        q = self.query(x)
        src = x if xa is None else xa
        k = self.key(src)
        v = self.value(src)
        wv, qk = self._attend(q, k, v, mask)
        return self.out(wv), qk

    def _attend(self, q, k, v, mask):
        b, n_ctx, n_state = q.shape
        scale = (n_state // self.n_head) ** -0.25
        q = q.view(b, n_ctx, self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(*v.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)

        qk = q @ k
        if mask is not None:
            # additive, built once for the longest context: 0 / -inf
            qk = qk + mask[:n_ctx, : qk.shape[-1]]
        qk = qk.float()
        w = qk.softmax(dim=-1).to(q.dtype)
        return (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2), w.detach()


class ResidualBlock(nn.Module):
    def __init__(self, n_state: int, n_head: int, cross: bool = False):
        super().__init__()
        self.attn = AudioAttention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross = AudioAttention(n_state, n_head) if cross else None
        self.cross_ln = nn.LayerNorm(n_state) if cross else None
        self.mlp = nn.Sequential(nn.Linear(n_state, n_state * 4), nn.GELU(), nn.Linear(n_state * 4, n_state))
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x, xa=None, mask=None):
        x = x + self.attn(self.attn_ln(x), mask=mask)[0]
        if self.cross is not None:
            x = x + self.cross(self.cross_ln(x), xa)[0]
        return x + self.mlp(self.mlp_ln(x))


def causal_mask(n):
    return torch.empty(n, n).fill_(float("-inf")).triu_(1)
