"""How close a head keeps to the diagonal, by the length of the text."""

import torch

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    if rows.position is None:
        return rows.nothing
    key = rows.places.int()
    ahead = torch.where(rows.allowed, key, -1).amax(-1) - rows.position
    behind = rows.position - torch.where(rows.allowed, key, len(key)).amin(-1)
    furthest = ahead.maximum(behind)  # (B, H or 1, R)
    counted = (furthest > 0) & rows.queries()
    away = rows.distances[0] / furthest.clamp(min=1)
    return (rows.mass - away) * counted, rows.mass * counted


DIAGONALITY = Metric(
    name="diagonality",
    label=Text("diagonality", "对角性"),
    title=Text("closeness to the diagonal, 1 on it", "与对角线的接近程度，在其上为 1"),
    formula=Text(
        "Σ_i Σ_j A[i,j] (1 - |i - j| / d(i)) / Σ_i Σ_j A[i,j], d(i) the furthest allowed |i - j|",
        "Σ_i Σ_j A[i,j] (1 - |i - j| / d(i)) / Σ_i Σ_j A[i,j]，d(i) 为允许的最远 |i - j|",
    ),
    source=Text(
        "cumulative diagonality of Shim et al. 2022, ∫ C(r) dr, with r a share of d(i)",
        "Shim 等 2022 的累积对角性 ∫ C(r) dr；r 为 d(i) 的比例",
    ),
    share=False,
    sums=_sums,
)
