"""Attention sinks: one more logit per head in the softmax, whose column is dropped afterwards.

With L the logsumexp of a row over its keys and s its head's sink, the row's is L' = log(e^L + e^s),
and its weights and output are those without the sink times e^(L - L') = sigmoid(L - s). A sink of
-inf is none; a row without a key keeps output 0, and its logsumexp is s.
"""

import torch
from torch import Tensor

from headwise.call import Call, softmax_dtype


def widen_for_sinks(call: Call, *rows: Tensor) -> list[Tensor]:
    """q, k, v in the softmax dtype where there are sinks.

    In half precision the output would be rounded twice, by the kernel and by the sinks' share, and
    the gradient of a sink would sum that error over all rows.
    """
    if call.sinks is None:
        return list(rows)
    return [tensor.to(softmax_dtype(tensor.dtype)) for tensor in rows]


def logsumexp_with_sinks(sums: Tensor, sinks: Tensor) -> Tensor:
    """L' of L (B, H, n) and sinks (H,), differentiable to any order, at infinities too.

    Example:
        >>> logsumexp_with_sinks(torch.zeros(1, 2, 1), torch.tensor([0.0, -torch.inf])).exp()
        tensor([[[2.],
                 [1.]]])
    """
    column = sinks.to(sums.dtype)[:, None].expand_as(sums)
    alone = (sums == -torch.inf) | (column == -torch.inf)
    both = torch.logaddexp(sums.masked_fill(alone, 0.0), column.masked_fill(alone, 0.0))
    return torch.where(alone, torch.maximum(sums, column), both)


def key_share(sums: Tensor, sinks: Tensor) -> Tensor:
    """e^(L - L') of L (B, H, n) and sinks (H,): the share of a row's keys; 0 where it sees none.

    Example:
        >>> key_share(torch.zeros(1, 2, 1), torch.tensor([0.0, -torch.inf]))
        tensor([[[0.5000],
                 [1.0000]]])
    """
    above = sums - sinks.to(sums.dtype)[:, None]
    return torch.sigmoid(above.masked_fill(sums == -torch.inf, -torch.inf))


def apply_sinks(output: Tensor, sums: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Output (B, H, n, Dv) and logsumexp (B, H, n) with sinks, from those without."""
    kept = output * key_share(sums, sinks)[..., None]
    return kept.to(output.dtype), logsumexp_with_sinks(sums, sinks)


def sinks_gradient(
    sinks: Tensor, grad: Tensor, output: Tensor, sums: Tensor, grad_sums: Tensor | None
) -> Tensor:
    """The gradient of the sinks (H,), whose weight in a row is p = e^(s - L'): Σ p (dL' - dO·O).

    Args:
        sinks: (H,).
        grad: of the output, dO, (B, H, n, Dv).
        output: O.
        sums: L', (B, H, n).
        grad_sums: of L', or None.
    """
    wide = softmax_dtype(output.dtype)
    moved = -(grad.to(wide) * output.to(wide)).sum(-1)  # (B, H, n)
    moved = moved if grad_sums is None else moved + grad_sums
    above = sinks.to(sums.dtype)[:, None] - sums
    weight = above.masked_fill(sums == -torch.inf, -torch.inf).exp()  # no sink where that is -inf
    return (weight * moved).sum((0, 2)).to(sinks.dtype)
