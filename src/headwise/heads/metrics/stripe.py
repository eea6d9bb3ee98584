"""How much a head looks along the stripe of induction on a text that repeats itself."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.on_stripe
    return rows.on_stripe * counted, counted


STRIPE = Metric(
    name="stripe",
    label=Text("stripe"),
    title=Text("share on what followed the token one period ago"),
    formula=Text(
        "mean_i A[i, i-n+1] over the queries i ≥ n of a text that repeats itself every n tokens"
    ),
    source=Text(
        "induction stripe of TransformerLens; theirs counts the query n - 1 too, which has none"
    ),
    share=False,
    reads=("single",),
    sums=_sums,
)
