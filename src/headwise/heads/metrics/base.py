"""What a metric of heads is: two sums over queries, whose quotient is its value."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.heads.metrics.rows import Rows, Sums
from headwise.lang import Text


@dataclass(frozen=True)
class Metric:
    """One measure of a head.

    A head's value is the sum of the first of `sums` over all queries of all texts, divided by the
    sum of the second; NaN where that is 0, because no query could show it.

    Attributes:
        name: one word, as in JSON.
        label: the same for a person, as at the head of a table's column.
        title: what it is, for a person.
        formula: how it is computed, with A the weights, i a query and j a key.
        source: which published variant this is.
        share: whether it is a share of the attention, from 0 to 1, that a head may stand out by.
        reads: the facts of `Rows` and of its `KeyContext` that ``sums`` looks at.
        sums: the numerator and the denominator for each query.
    """

    name: str
    label: Text
    title: Text
    formula: Text
    source: Text
    share: bool
    reads: tuple[str, ...]
    sums: Callable[[Rows], Sums]


def totals(metrics: Sequence[Metric], rows: Rows) -> Tensor:
    """Numerators and denominators summed over batch and queries, (2, metrics, H) in float64.

    A query that does not count contributes to neither.
    """
    counted, shape = rows.context.queries, rows.shape
    sums = [
        torch.where(counted, part, 0.0).expand(shape).sum((0, 2), dtype=torch.float64)
        for metric in metrics
        for part in metric.sums(rows)
    ]
    return torch.stack(sums).view(-1, 2, shape[1]).transpose(0, 1)


def total(metric: Metric, rows: Rows) -> tuple[Tensor, Tensor]:
    """Numerator and denominator of one metric, each (H,) in float64."""
    above, below = totals((metric,), rows)[:, 0]
    return above, below


__all__ = ["Metric", "Rows", "Sums", "total", "totals"]
