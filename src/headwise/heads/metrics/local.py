"""How much a head looks at the tokens around it."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.heads.metrics.offer import NEAR
from headwise.lang import Text

REACH = 4
"""How many tokens to each side are around a query."""


def _sums(rows: Rows) -> Sums:
    if rows.offer.position is None:
        return rows.nothing
    around = rows.near[..., NEAR - REACH : NEAR + REACH + 1]
    return around.sum(-1), rows.mass


LOCAL = Metric(
    name="local",
    label=Text("local"),
    title=Text("share within four tokens"),
    formula=Text("Σ_i Σ_{|i-j| ≤ 4} A[i,j] / Σ_i Σ_j A[i,j]"),
    source=Text("what the long-range score of attention-atlas (|i - j| ≥ 5) leaves, as a share"),
    share=True,
    reads=("single", "mass"),
    sums=_sums,
)
