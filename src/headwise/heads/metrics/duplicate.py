"""How much a head looks at other occurrences of the same token."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.on_repeats("same")


DUPLICATE = Metric(
    name="duplicate",
    label=Text("duplicate", "重复"),
    title=Text("share on other occurrences of the same token", "对同一词元其他出现处的份额"),
    formula=Text(
        "mean_i Σ_j A[i,j] over the keys with x[j] = x[i], j ≠ i, for the queries that have one",
        "mean_i Σ_j A[i,j]，取 x[j] = x[i] 且 j ≠ i 的键，只计存在此键的查询",
    ),
    source=Text(
        "the duplicate-token head of Wang et al. 2023, section 3.1, as a share",
        "Wang 等 2023，第 3.1 节的重复词元头，取其份额",
    ),
    share=False,  # few queries have one: on one text no head stands out by it
    reads=("repeats",),
    sums=_sums,
)
