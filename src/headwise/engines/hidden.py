"""Keys that nobody sees must not reach the arithmetic: 0 times NaN is NaN."""

import torch
from torch import Tensor

from headwise.call import Call
from headwise.shapes import Allowed


def without_hidden(call: Call, allowed: Allowed) -> tuple[Tensor, Tensor]:
    """k and v with 0 in the rows that no query of the group sees, NaN and inf included."""
    groups = call.k.shape[1]
    seen = allowed.any(-2)  # (B or 1, H or 1, Lk)
    if seen.shape[1] > 1:
        seen = torch.unflatten(seen, 1, (groups, call.group)).any(2)  # (B or 1, G, Lk)
    column = seen[..., None]
    return torch.where(column, call.k, 0.0), torch.where(column, call.v, 0.0)
