"""How much a head looks at what came after an earlier occurrence of the same token."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.on_repeats("after")


INDUCTION = Metric(
    name="induction",
    label=Text("induction"),
    title=Text("share on what followed an earlier occurrence of the token"),
    formula=Text(
        "mean_i Σ_j A[i,j] over the keys with x[j-1] = x[i], j ≠ i+1, for queries that have one"
    ),
    source=Text(
        "Olsson et al. 2022, prefix matching; theirs is on 25 random tokens repeated 4 times"
    ),
    share=False,  # few queries have one: on one text no head stands out by it
    reads=("repeats",),
    sums=_sums,
)
