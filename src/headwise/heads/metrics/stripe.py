"""How much a head looks along the stripe of induction on a text that repeats itself."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.on_stripe
    return rows.on_stripe * counted, counted


STRIPE = Metric(
    name="stripe",
    label=Text("stripe", "条纹"),
    title=Text(
        "share on what followed the token one period ago",
        "对一个周期前同一词元后一位的份额",
    ),
    formula=Text(
        "mean_i A[i, i-n+1] over the queries i ≥ n of a text that repeats itself every n tokens",
        "mean_i A[i, i-n+1]，i ≥ n，文本每 n 个词元重复一次",
    ),
    source=Text(
        "induction stripe of TransformerLens; theirs counts the query n - 1 too, which has none",
        "TransformerLens 的归纳条纹；其代码还计入没有该键的查询 n - 1",
    ),
    share=False,
    reads=("single",),
    sums=_sums,
)
