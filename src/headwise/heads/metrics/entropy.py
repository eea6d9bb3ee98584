"""How widely a head spreads its attention."""

import torch
from torch import Tensor

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def row_entropy(rows: Rows) -> Tensor:
    """-Σ_j A log A of each row in nats, (B, H, R), where 0 log 0 is 0.

    Example:
        >>> weights = torch.tensor([[[[0.5, 0.5, 0.0]]]])
        >>> here = torch.ones(1, 1, dtype=torch.bool)
        >>> rows = Rows(weights, weights > 0, here, None, torch.tensor([0]))
        >>> row_entropy(rows).item() == torch.tensor(2.0).log().item()
        True
    """
    terms: Tensor = torch.special.xlogy(rows.weights, rows.weights)
    return -terms.sum(-1)


def chooses(rows: Rows) -> Tensor:
    """Queries that may attend to at least two keys: the only ones whose entropy says anything."""
    return rows.queries() & (rows.allowed.sum(-1) > 1)


def _sums(rows: Rows) -> Sums:
    counted = chooses(rows)
    return row_entropy(rows) * counted, counted


ENTROPY = Metric(
    name="entropy",
    label=Text("entropy", "熵"),
    title=Text("entropy of the attention, in nats", "注意力的熵（奈特）"),
    formula=Text(
        "mean_i -Σ_j A[i,j] log A[i,j], over the queries that may attend to two keys or more",
        "mean_i -Σ_j A[i,j] log A[i,j]，只计可关注至少两个键的查询",
    ),
    source=Text(
        "Clark et al. 2019, section 3.2, without the smoothing of their code",
        "Clark 等 2019，第 3.2 节；不做其代码中的平滑",
    ),
    share=False,
    sums=_sums,
)
