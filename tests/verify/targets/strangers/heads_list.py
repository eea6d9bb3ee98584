import torch
import torch.nn as nn


class OneHead(nn.Module):
    def __init__(self, d_in, d_k, d_v):
        super().__init__()
        self.q = nn.Linear(d_in, d_k)
        self.k = nn.Linear(d_in, d_k)
        self.v = nn.Linear(d_in, d_v)
        self.norm = d_k ** 0.5

    def forward(self, queries, keys, values, bias=None):
        s = torch.bmm(self.q(queries), self.k(keys).transpose(1, 2)) / self.norm
        if bias is not None:
            s = s + bias
        return torch.bmm(s.softmax(dim=2), self.v(values))


class MultiHead(nn.Module):
    """ n_heads independent heads, concatenated and mixed.
    bias: (Lq, Lk) or (B, Lq, Lk) floats added to the scores of every head, -inf to hide """

    def __init__(self, d_in, n_heads, d_k, d_v):
        super().__init__()
        self.heads = nn.ModuleList([OneHead(d_in, d_k, d_v)] * n_heads)
        self.mix = nn.Linear(n_heads * d_v, d_in)

    def forward(self, queries, keys, values, bias=None):
        return self.mix(torch.cat([h(queries, keys, values, bias) for h in self.heads], dim=-1))
