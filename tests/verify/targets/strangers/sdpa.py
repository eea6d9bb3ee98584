import math
from typing import Optional, Tuple

import torch
import torch.nn.functional as F


def scaled_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Scaled dot-product attention over already projected heads.

    Args:
        q: [batch, heads, q_len, dim]
        k: [batch, heads, k_len, dim]
        v: [batch, heads, k_len, dim]
        mask: bool, broadcastable to [batch, heads, q_len, k_len]; True takes part.

    Returns:
        The attended values and the attention weights.
    """
    assert q.ndim == k.ndim == v.ndim == 4
    logits = torch.einsum("bhqd,bhkd->bhqk", q, k)
    if mask is not None:
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    weights = F.softmax(logits, dim=-1) / math.sqrt(q.shape[-1])
    return torch.einsum("bhqk,bhkd->bhqd", weights, v), weights
