"""Statistics of attention weights, and attention sinks."""

from collections.abc import Collection, Iterator
from typing import Final

import torch
from torch import Tensor

from headwise.call import Call, softmax_dtype
from headwise.lang import Text


def entropy(weights: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return the entropy of each query's weights, -Σ_j w log w in nats with 0 log 0 = 0, (B, H, n).

    Example:
        >>> place = torch.arange(2)
        >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])[None, None], place, place).exp()
        tensor([[[2., 1.]]])
    """
    del query, key
    return row_entropy(weights)


def row_entropy(rows: Tensor) -> Tensor:
    """Return -Σ w log w over the last axis, with 0 log 0 = 0."""
    least = torch.finfo(rows.dtype).tiny  # log(0) times 0 would be NaN
    return -(rows * rows.clamp(min=least).log()).sum(-1)


def received(weights: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return the attention that each key receives from these queries, Σ_i w, (B, H, m).

    Example:
        >>> place = torch.arange(2)
        >>> received(torch.tensor([[0.5, 0.5], [1.0, 0.0]])[None, None], place, place)
        tensor([[[1.5000, 0.5000]]])
    """
    del query, key
    return weights.sum(-2)


def distance(weights: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return the mean distance that each query attends to, Σ_j w |i - j|, in tokens, (B, H, n).

    Example:
        >>> place = torch.arange(2)
        >>> distance(torch.tensor([[0.5, 0.5], [1.0, 0.0]])[None, None], place, place)
        tensor([[[0.5000, 1.0000]]])
    """
    distances = (query[:, None] - key).abs().to(weights.dtype)  # (n, m)
    return (weights * distances).sum(-1)


def largest(weights: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return the largest weight of each query, max_j w, (B, H, n).

    Example:
        >>> place = torch.arange(2)
        >>> largest(torch.tensor([[0.5, 0.5], [1.0, 0.0]])[None, None], place, place)
        tensor([[[0.5000, 1.0000]]])
    """
    del query
    return weights.amax(-1) if len(key) else weights.sum(-1)


STATISTICS: Final = tuple((f.__name__, f) for f in (entropy, received, distance, largest))
"""Name and function of every statistic; the name is used in ``need`` and as a `Result` field."""


def measured(
    weights: Tensor, need: Collection[str], query: Tensor, key: Tensor
) -> dict[str, Tensor]:
    """Return the statistics named in ``need``."""
    return {name: of(weights, query, key) for name, of in STATISTICS if name in need}


def not_returned(need: Collection[str], returned: Collection[str]) -> Iterator[Text]:
    """Yield one reason for each needed result that an engine does not return."""
    for word in sorted(set(need) - set(returned)):
        yield Text("it does not return {word}", word=word)


def widen_for_sinks(call: Call, *rows: Tensor) -> list[Tensor]:
    """Convert q, k and v to the softmax dtype if the call has sinks.

    In half precision, the kernel and the sinks' share would both round the output, and the gradient
    of a sink would sum that error over all rows.
    """
    if call.sinks is None:
        return list(rows)
    return [tensor.to(softmax_dtype(tensor.dtype)) for tensor in rows]


def logsumexp_with_sinks(sums: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the logsumexp L' with sinks (H,), from L (B, H, n) without sinks.

    It is differentiable to any order, also where L or the sink is -inf.

    Example:
        >>> logsumexp_with_sinks(torch.zeros(1, 2, 1), torch.tensor([0.0, -torch.inf])).exp()
        tensor([[[2.],
                 [1.]]])
    """
    if sinks is None:
        return sums
    column = sinks.to(sums.dtype)[:, None].expand_as(sums)
    alone = (sums == -torch.inf) | (column == -torch.inf)
    both = torch.logaddexp(sums.masked_fill(alone, 0.0), column.masked_fill(alone, 0.0))
    return torch.where(alone, torch.maximum(sums, column), both)


def key_share(sums: Tensor, sinks: Tensor) -> Tensor:
    """Return the share e^(L - L') of a row that its keys get, or 0 if it has no allowed key.

    L is the logsumexp without the sinks, L' the logsumexp with them.
    """
    above = sums - sinks.to(sums.dtype)[:, None]
    return torch.sigmoid(above.masked_fill(sums == -torch.inf, -torch.inf))


def apply_sinks(output: Tensor, sums: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return output (B, H, n, Dv) and logsumexp (B, H, n) with sinks, from those without."""
    if sinks is None:
        return output, sums
    kept = output * key_share(sums, sinks)[..., None]
    return kept.to(output.dtype), logsumexp_with_sinks(sums, sinks)


def sinks_gradient(
    sinks: Tensor | None, grad: Tensor, output: Tensor, sums: Tensor, grad_sums: Tensor | None
) -> Tensor | None:
    """Return the gradient of the sinks s (H,), Σ p (dL' - dO·O) with p = e^(s - L'), or None.

    O is the output (B, H, n, Dv), dO its gradient, L' the logsumexp (B, H, n), dL' its gradient.
    """
    if sinks is None:
        return None
    wide = softmax_dtype(output.dtype)
    moved = -(grad.to(wide) * output.to(wide)).sum(-1)  # (B, H, n)
    moved = moved if grad_sums is None else moved + grad_sums
    above = sinks.to(sums.dtype)[:, None] - sums
    weight = above.masked_fill(sums == -torch.inf, -torch.inf).exp()  # the sink is -inf there
    return (weight * moved).sum((0, 2)).to(sinks.dtype)
