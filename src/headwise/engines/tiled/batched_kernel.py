"""Blocks of queries, each with its block of keys, in as few kernel calls as possible.

Shapes have five axes: q (B, H, n, r, D), k (B, G, n, m, D), where n counts blocks; the kernel has
four. One block has its axis dropped. With one mask for all samples and a key head for every head,
(B, H) fold into one axis and the blocks stand where the kernel has its heads. Otherwise each sample
is a call of its own, its blocks the batch, so that heads may share keys without a copy of them.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from headwise.engines import kernel
from headwise.engines.kernel import BackwardInputs


class BatchLayout(Enum):
    """How five axes become four."""

    ONE = "one block"
    FOLD = "samples and heads folded"
    EACH = "samples one by one"


def forward(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Output (B, H, n, r, Dv) and logsumexp (B, H, n, r) of blocks of q, k, v.

    ``added`` is (B or 1, H or 1, n or 1, r, m), or None.
    """
    layout, samples = layout_of(q, k, v, added), q.shape[0]
    calls = _calls((q, k, v), added, layout)
    results = [kernel.forward(rows, keys, seen, mask, scale) for rows, keys, seen, mask in calls]
    output, logsumexp = (_together(parts, layout) for parts in zip(*results, strict=True))
    return output, logsumexp
