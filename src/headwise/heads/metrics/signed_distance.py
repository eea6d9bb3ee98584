"""To which side a head looks."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.nothing if rows.offer.position is None else (rows.distances[1], rows.mass)


SIGNED_DISTANCE = Metric(
    name="signed_distance",
    label=Text("direction"),
    title=Text("mean place of what it attends to, in tokens after the query"),
    formula=Text("Σ_i Σ_j A[i,j] (j - i) / Σ_i Σ_j A[i,j]; negative before the query"),
    source=Text("the distance of Vig and Belinkov 2019, section 4.4, with its sign"),
    share=False,
    reads=("distances", "mass"),
    sums=_sums,
)
