"""Blocks of queries, each with its block of keys, in as few kernel calls as possible.

Shapes have five axes: q (B, H, n, r, D), k (B, G, n, m, D), where n counts blocks; the kernel has
four. One block has its axis dropped. With one mask for all samples and a key head for every head,
(B, H) fold into one axis and the blocks stand where the kernel has its heads. Otherwise each sample
is a call of its own, its blocks the batch, so that heads may share keys without a copy of them.
"""

from enum import Enum

import torch
from torch import Tensor

from headwise.engines import kernel
from headwise.engines.kernel import BackwardInputs


class BatchLayout(Enum):
    """How five axes become four."""

    ONE = "one block"
    FOLD = "samples and heads folded"
    EACH = "parts sample apart"


def forward(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Output (B, H, n, r, Dv) and logsumexp (B, H, n, r).

    Args:
        q: the blocks of queries.
        k: the blocks of keys.
        v: the blocks of values.
        added: (B or 1, H or 1, n or 1, r, m), or None.
        scale: the factor on the scores.
    """
    layout, samples = layout_of(q, k, v, added), q.shape[0]
    calls = zip(
        *(_apart(t, layout) for t in (q, k, v)), _masks(added, layout, samples), strict=True
    )
    results = [kernel.forward(rows, keys, seen, mask, scale) for rows, keys, seen, mask in calls]
    output, logsumexp = (_together(parts, layout, samples) for parts in zip(*results, strict=True))
    return output, logsumexp


def backward(
    given: BackwardInputs, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the blocks; what is given has blocks too."""
    layout, samples = layout_of(q, k, v, added), q.shape[0]
    results = (given.grad, given.output, given.logsumexp)
    known = (
        BackwardInputs(*own) for own in zip(*(_apart(t, layout) for t in results), strict=True)
    )
    calls = zip(known, *(_apart(t, layout) for t in (q, k, v)), strict=True)
    gradients = [
        kernel.backward(own, rows, keys, seen, mask, scale)
        for (own, rows, keys, seen), mask in zip(calls, _masks(added, layout, samples), strict=True)
    ]
    dq, dk, dv = (_together(parts, layout, samples) for parts in zip(*gradients, strict=True))
    return dq, dk, dv


def weights(q: Tensor, k: Tensor, added: Tensor | None, logsumexp: Tensor, scale: float) -> Tensor:
    """exp(scores - logsumexp), (B, H, n, r, m): the weights, by matrix products."""
    layout, samples = layout_of(q, k, k, added), q.shape[0]
    calls = zip(
        *(_apart(t, layout) for t in (q, k, logsumexp)), _masks(added, layout, samples), strict=True
    )
    parts = tuple(
        (kernel.plain_scores(one, keys, mask, scale) - sums[..., None]).exp()
        for one, keys, sums, mask in calls
    )
    return _together(parts, layout, samples)


def mixed(shares: Tensor, v: Tensor) -> Tensor:
    """Weights (B, H, n, r, m) times values (B, G, n, m, Dv), in the dtype of the weights."""
    layout, samples = layout_of(shares, v, v, None), shares.shape[0]
    calls = zip(*(_apart(t, layout) for t in (shares, v.to(shares.dtype))), strict=True)
    return _together(tuple(kernel.grouped_matmul(*call) for call in calls), layout, samples)


def layout_of(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None) -> BatchLayout:
    """How these blocks are laid out for the kernel."""
    if q.shape[2] == 1:
        return BatchLayout.ONE
    shared = added is None or added.shape[0] == added.shape[1] == 1
    evenly = all(t.shape[0] == 1 or t.stride(0) == t.shape[1] * t.stride(1) for t in (q, k, v))
    return BatchLayout.FOLD if shared and evenly and q.shape[1] == k.shape[1] else BatchLayout.EACH


def _apart(blocks: Tensor, layout: BatchLayout) -> list[Tensor]:
    if layout is BatchLayout.ONE:
        return [blocks[:, :, 0]]
    if layout is BatchLayout.FOLD:
        return [blocks.flatten(0, 1)]
    return [sample.transpose(0, 1) for sample in blocks]


def _together(parts: tuple[Tensor, ...], layout: BatchLayout, samples: int) -> Tensor:
    if layout is BatchLayout.ONE:
        return parts[0].unsqueeze(2)
    if layout is BatchLayout.FOLD:
        return torch.unflatten(parts[0], 0, (samples, -1))
    turned = [part.transpose(0, 1) for part in parts]
    return turned[0][None] if samples == 1 else torch.stack(turned)


def _masks(added: Tensor | None, layout: BatchLayout, samples: int) -> list[Tensor | None]:
    if added is None:
        return [None] * (samples if layout is BatchLayout.EACH else 1)
    if layout is BatchLayout.ONE:
        return [added[:, :, 0]]
    if layout is BatchLayout.FOLD:
        return [added[0]]
    return [sample.transpose(0, 1) for sample in added.expand(samples, -1, -1, -1, -1)]
