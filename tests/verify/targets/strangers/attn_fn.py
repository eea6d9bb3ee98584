import torch


def attend(query, key, value, blocked=None):
    """
    Dot product attention as in "Attention is all you need", eq. (1).

    Args:
        query: (..., Lq, d)
        key:   (..., Lk, d)
        value: (..., Lk, dv)
        blocked: bool, broadcastable to (..., Lq, Lk). True where looking is
            forbidden. A query with nothing left to look at gets zeros.

    Returns:
        (..., Lq, dv)
    """
    if query.size(-1) != key.size(-1):
        raise ValueError(f"query has {query.size(-1)} features, key has {key.size(-1)}")
    if key.size(-2) != value.size(-2):
        raise ValueError("as many keys as values, please")

    logits = torch.matmul(query * query.size(-1) ** -0.5, key.transpose(-1, -2))
    if blocked is None:
        p = logits - logits.amax(-1, keepdim=True)
        p = p.exp()
        return torch.matmul(p / p.sum(-1, keepdim=True), value)

    lowest = torch.finfo(logits.dtype).min
    logits = torch.where(blocked, lowest, logits)
    p = (logits - logits.amax(-1, keepdim=True)).exp()
    p = torch.where(blocked, torch.zeros_like(p), p)
    total = p.sum(-1, keepdim=True)
    return torch.matmul(p / total.clamp_min(1e-20), value)
