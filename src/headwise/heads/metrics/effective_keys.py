"""How many keys a head attends to, as if it shared its attention equally among them."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.chooses
    return rows.entropy.exp() * counted, counted


EFFECTIVE_KEYS = Metric(
    name="effective_keys",
    label=Text("effective keys"),
    title=Text("effective number of keys"),
    formula=Text(
        "mean_i exp(H(i)), H the entropy of row i, over the queries that may attend to "
        "two keys or more"
    ),
    source=Text(
        "the perplexity of each row, at most its allowed keys; the mean is after the exponential"
    ),
    share=False,
    reads=("entropy", "chooses"),
    sums=_sums,
)
