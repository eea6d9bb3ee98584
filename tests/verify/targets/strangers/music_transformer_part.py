import numpy as np
import torch


class MHA(torch.nn.Module):
    """(batch, time, width) -> (batch, time, width).

    Four learned maps: Wq, Wk, Wv for the heads and the final W_concat that
    mixes what the heads found.
    """

    def __init__(self, width, n_heads):
        super(MHA, self).__init__()
        self.width = width
        self.n_heads = n_heads
        self.depth = width // n_heads
        self.Wq = torch.nn.Linear(width, width, bias=False)
        self.Wk = torch.nn.Linear(width, width, bias=False)
        self.Wv = torch.nn.Linear(width, width, bias=False)
        self.W_concat = torch.nn.Linear(width, width, bias=False)

    def split(self, x):
        b, t, _ = x.shape
        return x.view(b, t, self.n_heads, self.depth).permute(0, 2, 1, 3)

    def forward(self, x, m=None):
        # m: (time, time), 1 = visible, 0 = hidden
        q = self.split(self.Wq(x))
        k = self.split(self.Wk(x))
        v = self.split(self.Wv(x))

        e = torch.matmul(q, k.transpose(-1, -2)) / np.sqrt(self.depth)
        if m is not None:
            e = e.masked_fill(m == 0, -1e10)
        a = torch.nn.functional.softmax(e, dim=-1)

        r = torch.matmul(a, v)
        r = r.permute(0, 2, 1, 3).contiguous()
        r = r.view(x.size(0), x.size(1), self.width)
        return r
