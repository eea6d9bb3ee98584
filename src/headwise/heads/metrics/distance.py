"""How far a head looks."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    if rows.offer.position is None:
        return rows.nothing
    return rows.distances[0], rows.mass


DISTANCE = Metric(
    name="distance",
    label=Text("distance", "距离"),
    title=Text("mean distance of what it attends to, in tokens", "所关注词元的平均距离（词元数）"),
    formula=Text(
        "Σ_i Σ_j A[i,j] |i - j| / Σ_i Σ_j A[i,j]",
        "Σ_i Σ_j A[i,j] |i - j| / Σ_i Σ_j A[i,j]",
    ),
    source=Text(
        "Vig and Belinkov 2019, section 4.4; |i - j| where keys may come after the query",
        "Vig 与 Belinkov 2019，第 4.4 节；键可在查询之后时取 |i - j|",
    ),
    share=False,
    reads=("distances", "mass"),
    sums=_sums,
)
