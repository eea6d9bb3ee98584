"""The legend: the letters that name sizes everywhere in headwise.

    B    batch
    H    query heads
    G    key/value heads; G divides H, and query head h reads key/value head h // (H / G)
    Lq   number of queries          Lk   number of keys
    E    embed_dim (the paper's d_model)
    D    head dim of queries and keys (the paper's d_k)
    Dv   head dim of values (the paper's d_v)

`attend` takes q (B, H, Lq, D), k (B, G, Lk, D), v (B, G, Lk, Dv). In annotations the same letters
stand in lower case: ``Float[Tensor, "b h lq d"]``.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Index = Int[Tensor, "..."]
"""Batch, head, query or key numbers, in shapes that broadcast against each other."""

Truth = Bool[Tensor, "..."]
"""What a mask's rule answers: True means may attend."""

Allowed = Bool[Tensor, "#b #h lq lk"]
Queries = Float[Tensor, "b h lq d"]
Keys = Float[Tensor, "b g lk d"]
Values = Float[Tensor, "b g lk dv"]
Sinks = Float[Tensor, "h"]


@dataclass(frozen=True)
class Frame:
    """The outer shape of one attention: what a mask has to know to be evaluated.

    A mask sees query number i at position ``i + offset``. The default offset Lk - Lq aligns
    the last query with the last key.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    offset: int
    device: torch.device

    def indices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """b (B,1,1,1), h (1,H,1,1), query positions (1,1,Lq,1), keys (1,1,1,Lk)."""

        def count(n: int, axis: int) -> Tensor:
            shape = [1, 1, 1, 1]
            shape[axis] = n
            return torch.arange(n, device=self.device).view(shape)

        positions = count(self.queries, 2) + self.offset
        return count(self.batch, 0), count(self.heads, 1), positions, count(self.keys, 3)
