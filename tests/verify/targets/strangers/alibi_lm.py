import math
import torch
import torch.nn as nn


def slopes_for(n):
    def pow2(n):
        start = 2.0 ** (-(2.0 ** -(math.log2(n) - 3)))
        return [start ** (i + 1) for i in range(n)]
    if math.log2(n).is_integer():
        return pow2(n)
    m = 2 ** math.floor(math.log2(n))
    return pow2(m) + pow2(2 * m)[0::2][: n - m]


class ALiBiAttention(nn.Module):
    """Causal self attention whose only notion of position is a linear penalty
    on distance (Press et al., 2021)."""

    def __init__(self, hidden, heads_count, max_len=512):
        super().__init__()
        if hidden % heads_count:
            raise ValueError("hidden must be a multiple of heads_count")
        self.heads_count = heads_count
        self.size = hidden // heads_count
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.dense = nn.Linear(hidden, hidden)
        pos = torch.arange(max_len)
        dist = (pos[None, :] - pos[:, None]).float()        # j - i, <= 0 in the past
        alibi = dist * torch.tensor(slopes_for(heads_count))[:, None, None]
        alibi = alibi.masked_fill(dist > 0, float("-inf"))
        self.register_buffer("alibi", alibi, persistent=False)   # (heads, max_len, max_len)

    def forward(self, hidden_states):
        b, t, e = hidden_states.shape
        # every head has its q, k and v next to each other in the projection
        fused = self.qkv(hidden_states).view(b, t, self.heads_count, 3, self.size)
        q, k, v = fused[..., 0, :], fused[..., 1, :], fused[..., 2, :]
        scores = torch.baddbmm(
            self.alibi[:, :t, :t].repeat(b, 1, 1),
            q.permute(0, 2, 1, 3).reshape(b * self.heads_count, t, self.size),
            k.permute(0, 2, 3, 1).reshape(b * self.heads_count, self.size, t),
            alpha=1.0 / math.sqrt(self.size),
        )
        probs = scores.softmax(-1)
        ctx = probs @ v.permute(0, 2, 1, 3).reshape(b * self.heads_count, t, self.size)
        ctx = ctx.view(b, self.heads_count, t, self.size).permute(0, 2, 1, 3).reshape(b, t, e)
        return self.dense(ctx)
