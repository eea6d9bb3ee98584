"""Statistics of attention weights.

Every function takes the weights of some queries, (B, H, n, m) in float32 at least, 0 where not
allowed, and the positions of these queries (n,) and keys (m,). A fully masked query adds 0. All are
differentiable.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final

import torch
from torch import Tensor

from headwise.lang import Text


def entropy(weights: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """-Σ_j w log w of each query in nats, (B, H, n), where 0 log 0 is 0.

    Example:
        >>> place = torch.arange(2)
        >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])[None, None], place, place).exp()
        tensor([[[2., 1.]]])
    """
    del query, key
    least = torch.finfo(weights.dtype).tiny  # the logarithm of 0 times 0 is NaN
    return -(weights * weights.clamp(min=least).log()).sum(-1)


def received(weights: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Σ_i w, the attention that every key receives from these queries, (B, H, m).

    Example:
        >>> place = torch.arange(2)
        >>> received(torch.tensor([[0.5, 0.5], [1.0, 0.0]])[None, None], place, place)
        tensor([[[1.5000, 0.5000]]])
    """
    del query, key
    return weights.sum(-2)


def distance(weights: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Σ_j w |i - j|, the mean distance that a query attends to, in tokens, (B, H, n).

    Example:
        >>> place = torch.arange(2)
        >>> distance(torch.tensor([[0.5, 0.5], [1.0, 0.0]])[None, None], place, place)
        tensor([[[0.5000, 1.0000]]])
    """
    apart = (query[:, None] - key).abs().to(weights.dtype)  # (n, m)
    return (weights * apart).sum(-1)


def largest(weights: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """max_j w of each query, (B, H, n).

    Example:
        >>> place = torch.arange(2)
        >>> largest(torch.tensor([[0.5, 0.5], [1.0, 0.0]])[None, None], place, place)
        tensor([[[0.5000, 1.0000]]])
    """
    del query
    return weights.amax(-1) if len(key) else weights.sum(-1)


Statistic = Callable[[Tensor, Tensor, Tensor], Tensor]

STATISTICS: Final[tuple[tuple[str, Statistic], ...]] = (
    ("entropy", entropy),
    ("received", received),
    ("distance", distance),
    ("largest", largest),
)
"""Every statistic, by the word in ``need`` and the field of a `Result`."""


def measured(
    weights: Tensor, need: Collection[str], query: Tensor, key: Tensor
) -> dict[str, Tensor]:
    """The statistics that are needed, by name."""
    return {name: of(weights, query, key) for name, of in STATISTICS if name in need}


def not_returned(need: Collection[str], returned: Collection[str]) -> Iterator[Text]:
    """A reason against an engine for each word that is needed and not returned."""
    if need:
        for word in sorted(set(need) - set(returned)):
            yield Text("it does not return {word}", word=word)
