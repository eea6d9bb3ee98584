"""Blog post: 'Attention in four einsums'.  One sentence at a time, no batch."""
import torch
from torch import nn, Tensor


class EinsumAttention(nn.Module):
    def __init__(self, width: int, heads: int, head_size: int):
        super().__init__()
        self.width, self.heads, self.head_size = width, heads, head_size
        s = width ** -0.5
        self.Q = nn.Parameter(torch.randn(heads, width, head_size) * s)
        self.K = nn.Parameter(torch.randn(heads, width, head_size) * s)
        self.V = nn.Parameter(torch.randn(heads, width, head_size) * s)
        self.O = nn.Parameter(torch.randn(heads, head_size, width) * (heads * head_size) ** -0.5)

    def forward(self, x: Tensor, allowed: Tensor = None) -> Tensor:
        """
        x:       (L, width)
        allowed: (L, L) bool, allowed[i, j] says that i may read j
        """
        if x.dim() != 2 or x.size(1) != self.width:
            raise ValueError(f"expected (L, {self.width}), got {tuple(x.shape)}")
        q = torch.einsum("le,hed->hld", x, self.Q)
        k = torch.einsum("le,hed->hld", x, self.K)
        v = torch.einsum("le,hed->hld", x, self.V)
        w = torch.einsum("hid,hjd->hij", q, k).div(self.head_size ** 0.5)
        if allowed is not None:
            w = w.masked_fill(allowed.logical_not(), -1e30)
        w = w.softmax(dim=2)
        return torch.einsum("hij,hjd,hde->ie", w, v, self.O)
