"""How much a head looks at other occurrences of the same token."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.on_repeats("same")


DUPLICATE = Metric(
    name="duplicate",
    label=Text("duplicate"),
    title=Text("share on other occurrences of the same token"),
    formula=Text(
        "mean_i Σ_j A[i,j] over the keys with x[j] = x[i], j ≠ i, for the queries that have one"
    ),
    source=Text("the duplicate-token head of Wang et al. 2023, section 3.1, as a share"),
    share=False,  # few queries have one: on one text no head stands out by it
    reads=("repeats",),
    sums=_sums,
)
