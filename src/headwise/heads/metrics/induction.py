"""How much a head looks at what came after an earlier occurrence of the same token."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.on_repeats("after")


INDUCTION = Metric(
    name="induction",
    label=Text("induction", "归纳"),
    title=Text(
        "share on what followed an earlier occurrence of the token",
        "对同一词元先前出现后一位的份额",
    ),
    formula=Text(
        "mean_i Σ_j A[i,j] over the keys with x[j-1] = x[i], j ≠ i+1, for queries that have one",
        "mean_i Σ_j A[i,j]，取 x[j-1] = x[i] 且 j ≠ i+1 的键，只计存在此键的查询",
    ),
    source=Text(
        "Olsson et al. 2022, prefix matching; theirs is on 25 random tokens repeated 4 times",
        "Olsson 等 2022，前缀匹配；原文用 25 个随机词元重复 4 次",
    ),
    share=False,  # few queries have one: on one text no head stands out by it
    reads=("repeats",),
    sums=_sums,
)
