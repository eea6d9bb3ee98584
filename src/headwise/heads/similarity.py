"""How alike heads are: the divergence of what they attend to, and groups of heads that agree."""

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.errors import BadValue


def jensen_shannon(one: Tensor, other: Tensor) -> Tensor:
    """The Jensen-Shannon divergence of distributions over the last axis, in nats, 0 to log 2.

    Its square root is a distance; this is the divergence itself.

    Args:
        one: (..., n), each summing to 1.
        other: the same.

    Source: Clark et al. 2019, section 6; Lin 1991.

    Example:
        >>> jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])).exp()
        tensor(2.)
    """
    middle = (one + other) / 2
    return (_divergence(one, middle) + _divergence(other, middle)) / 2


def distances(weights: Float[Tensor, "h lq lk"], allowed: Tensor | None = None) -> Tensor:
    """The mean divergence between what heads attend to, (H, H), over the queries that see a key.

    Args:
        weights: of the heads of one text, of any layers, (H, Lq, Lk); rows sum to 1.
        allowed: (H or 1, Lq, Lk), where a query may attend; None means everywhere.

    Source: Clark et al. 2019, section 6, without the smoothing, and as a mean: their sum grows
    with the corpus.
    """
    heads, queries, keys = weights.shape
    seen = torch.ones(1, queries, keys, dtype=torch.bool) if allowed is None else allowed
    counts = seen.any(-1).expand(heads, -1)  # (H, Lq)
    both = counts[:, None] & counts[None]
    found = torch.stack([jensen_shannon(row[None], weights) for row in weights])  # (H, H, Lq)
    return (found * both).sum(-1) / both.sum(-1).clamp(min=1)


def groups(distance: Tensor, most: float) -> list[list[int]]:
    """Heads that agree, each group with its heads in order, the groups by their first head.

    Two heads are in one group if no two heads of it are further apart than ``most`` (complete
    linkage): the nearest two groups are joined first.

    Args:
        distance: (H, H), symmetric.
        most: what the heads of a group may differ by at most.

    Raises:
        BadValue: if the distances are no symmetric square.

    Example:
        >>> groups(torch.tensor([[0.0, 0.1, 0.6], [0.1, 0.0, 0.6], [0.6, 0.6, 0.0]]), 0.2)
        [[0, 1], [2]]
    """
    if distance.dim() != 2 or not torch.equal(distance, distance.mT):
        raise BadValue(
            f"distance: expected a symmetric (H, H), got {tuple(distance.shape)}",
            f"distance：应为对称的 (H, H)，收到 {tuple(distance.shape)}",
        )
    found = [[number] for number in range(distance.shape[0])]
    while len(found) > 1:
        apart, one, other = min(
            (distance[found[i]][:, found[j]].max().item(), i, j)
            for i in range(len(found))
            for j in range(i + 1, len(found))
        )
        if apart > most:
            break
        found[one] = sorted(found[one] + found.pop(other))
    return found


def _divergence(one: Tensor, other: Tensor) -> Tensor:
    """Σ p log(p / q), where 0 log 0 is 0 and q is 0 only where p is."""
    terms: Tensor = torch.special.xlogy(one, one) - torch.special.xlogy(one, other)
    return terms.sum(-1)
