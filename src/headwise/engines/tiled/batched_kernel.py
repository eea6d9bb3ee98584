"""Blocks of queries, each with its block of keys, in as few kernel calls as possible.

The tensors have five axes: q (B, H, n, r, D), k (B, G, n, m, D), where n counts blocks. The kernel
takes four axes. A single block drops the axis n. If all samples and heads share one mask, and every
head has its own key/value head, (B, H) fold into one axis and the blocks take the kernel's axis of
heads. Otherwise every sample is a separate call with its blocks as the batch, so heads share keys
without copying them. A function of the scores gets a whole part, with samples and blocks as batch.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from headwise.engines import kernel
from headwise.engines.kernel import BackwardInputs, Modify


class BatchLayout(Enum):
    """How the five axes of the blocks become the kernel's four axes."""

    ONE = "one block"
    FOLD = "samples and heads folded"
    EACH = "samples one by one"
    BATCH = "samples and blocks folded"


def forward(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float, modify: Modify = None
) -> tuple[Tensor, Tensor]:
    """Return output (B, H, n, r, Dv) and logsumexp (B, H, n, r) of the blocks.

    ``added`` is (B or 1, H or 1, n or 1, r, m), or None; ``modify`` is a function of the scaled
    scores (B n, H, r, m), or None.
    """

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return kernel.forward(q, k, v, mask, scale, modify)

    output, logsumexp = _run(function, (q, k, v), added, layout_of(q, k, v, added, modify))
    return output, logsumexp


def backward(
    given: BackwardInputs,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Tensor | None,
    scale: float,
    modify: Modify = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v; the tensors of ``given`` are blocks too."""

    def function(*inputs: Any) -> tuple[Tensor, ...]:
        grad, output, sums, q, k, v, mask = inputs
        return kernel.backward(BackwardInputs(grad, output, sums), q, k, v, mask, scale, modify)

    inputs = given.grad, given.output, given.logsumexp, q, k, v
    dq, dk, dv = _run(function, inputs, added, layout_of(q, k, v, added, modify))
    return dq, dk, dv


def weights(
    q: Tensor,
    k: Tensor,
    added: Tensor | None,
    logsumexp: Tensor,
    scale: float,
    modify: Modify = None,
) -> Tensor:
    """Return the weights exp(scores - logsumexp), (B, H, n, r, m), by matrix products."""

    def function(q: Tensor, k: Tensor, sums: Tensor, mask: Tensor | None) -> tuple[Tensor]:
        return ((kernel.plain_scores(q, k, mask, scale, modify) - sums[..., None]).exp(),)

    return _run(function, (q, k, logsumexp), added, layout_of(q, k, k, added, modify))[0]


def mixed(weights: Tensor, v: Tensor) -> Tensor:
    """Return weights (B, H, n, r, m) times values (B, G, n, m, Dv), in the dtype of the weights."""
    inputs, layout = (weights, v.to(weights.dtype)), layout_of(weights, v, v, None)
    return _run(lambda *call: (kernel.grouped_matmul(*call[:2]),), inputs, None, layout)[0]


def layout_of(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, modify: Modify = None
) -> BatchLayout:
    """Return the layout in which the kernel can compute these blocks."""
    if modify is not None:
        return BatchLayout.BATCH
    if q.shape[2] == 1:
        return BatchLayout.ONE
    shared = added is None or added.shape[0] == added.shape[1] == 1
    evenly = all(t.shape[0] == 1 or t.stride(0) == t.shape[1] * t.stride(1) for t in (q, k, v))
    return BatchLayout.FOLD if shared and evenly and q.shape[1] == k.shape[1] else BatchLayout.EACH


def _run(
    function: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    added: Tensor | None,
    layout: BatchLayout,
) -> list[Tensor]:
    """Apply a function of four-axis tensors, the last of which is the mask, to the blocks."""
    samples = inputs[0].shape[0]
    columns: list[Sequence[Tensor | None]] = [_split(tensor, layout) for tensor in inputs]
    if added is None:
        columns.append([None] * len(columns[0]))
    elif layout is BatchLayout.BATCH:
        columns.append([folded(added.expand(samples, -1, inputs[0].shape[2], -1, -1))])
    elif layout is BatchLayout.EACH:
        columns.append(_split(added.expand(samples, -1, -1, -1, -1), layout))
    else:
        columns.append([added[0] if layout is BatchLayout.FOLD else added[:, :, 0]])
    results = [function(*call) for call in zip(*columns, strict=True)]
    return [_joined(parts, layout, samples) for parts in zip(*results, strict=True)]


def _split(blocks: Tensor, layout: BatchLayout) -> list[Tensor]:
    if layout is BatchLayout.ONE:
        return [blocks[:, :, 0]]
    if layout is BatchLayout.FOLD:
        return [blocks.flatten(0, 1)]
    if layout is BatchLayout.BATCH:
        return [folded(blocks)]
    return [sample.transpose(0, 1) for sample in blocks]


def _joined(parts: Sequence[Tensor], layout: BatchLayout, samples: int) -> Tensor:
    if layout is BatchLayout.ONE:
        return parts[0].unsqueeze(2)
    if layout is BatchLayout.FOLD:
        return torch.unflatten(parts[0], 0, (samples, -1))
    if layout is BatchLayout.BATCH:
        return torch.unflatten(parts[0], 0, (samples, -1)).transpose(1, 2)
    turned = [part.transpose(0, 1) for part in parts]
    return turned[0][None] if samples == 1 else torch.stack(turned)


def folded(blocks: Tensor) -> Tensor:
    """Return (B, H, n, r, X) as (B n, H, r, X)."""
    return blocks.transpose(1, 2).flatten(0, 1)


def unfolded(rows: Tensor, samples: int) -> Tensor:
    """Return (B n, H, r, X) as (B, H, n, r, X); a batch of 1 gives one block for all."""
    if rows.shape[0] == 1:
        return rows[:, :, None]
    return torch.unflatten(rows, 0, (samples, -1)).transpose(1, 2)
