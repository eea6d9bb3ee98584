"""How far a head looks."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    if rows.offer.position is None:
        return rows.nothing
    return rows.distances[0], rows.mass


DISTANCE = Metric(
    name="distance",
    label=Text("distance"),
    title=Text("mean distance of what it attends to, in tokens"),
    formula=Text("Σ_i Σ_j A[i,j] |i - j| / Σ_i Σ_j A[i,j]"),
    source=Text("Vig and Belinkov 2019, section 4.4; |i - j| where keys may come after the query"),
    share=False,
    reads=("distances", "mass"),
    sums=_sums,
)
