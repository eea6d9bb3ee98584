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
    label=Text("spread"),
    title=Text("spread of what it attends to, in tokens"),
    formula=Text("mean_i sqrt(Σ_j A[i,j] (j - m)²), m = Σ_j A[i,j] j, each row divided by its sum"),
    source=Text("the standard deviation of each row; ours, beside the mean distance"),
    share=False,
    reads=("distances", "mass"),
    sums=_sums,
)
