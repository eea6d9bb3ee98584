"""How far apart the tokens lie that a head looks at from one place."""

import torch

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    if rows.offer.position is None:
        return rows.nothing
    counted = rows.offer.queries
    _, signed, square, _ = rows.distances
    mass = rows.mass.clamp(min=torch.finfo(rows.weights.dtype).tiny)
    variance = square / mass - (signed / mass).square()
    return variance.clamp(min=0).sqrt() * counted, counted


DISTANCE_SPREAD = Metric(
    name="distance_spread",
    label=Text("spread", "散布"),
    title=Text("spread of what it attends to, in tokens", "所关注位置的标准差（词元数）"),
    formula=Text(
        "mean_i sqrt(Σ_j A[i,j] (j - m)²), m = Σ_j A[i,j] j, each row divided by its sum",
        "mean_i sqrt(Σ_j A[i,j] (j - m)²)，m = Σ_j A[i,j] j，每行先除以其和",
    ),
    source=Text(
        "the standard deviation of each row; ours, beside the mean distance",
        "每一行的标准差；本项目自定，与平均距离并列",
    ),
    share=False,
    reads=("distances", "mass"),
    sums=_sums,
)
