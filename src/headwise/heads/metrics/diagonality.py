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
    label=Text("diagonality"),
    title=Text("closeness to the diagonal, 1 on it"),
    formula=Text(
        "Σ_i Σ_j A[i,j] (1 - |i - j| / d(i)) / Σ_i Σ_j A[i,j], d(i) the furthest allowed |i - j|"
    ),
    source=Text("cumulative diagonality of Shim et al. 2022, ∫ C(r) dr, with r a share of d(i)"),
    share=False,
    reads=("distances", "furthest", "mass"),
    sums=_sums,
)
