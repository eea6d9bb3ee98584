"""How close a head keeps to the diagonal, by the length of the text."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    if rows.offer.position is None:
        return rows.nothing
    furthest = rows.offer.furthest  # (B, H or 1, R)
    counted = (furthest > 0) & rows.offer.queries
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
    reads=("distances", "furthest", "mass"),
    sums=_sums,
)
