"""How many keys a head attends to, as if it shared its attention equally among them."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.heads.metrics.entropy import chooses, row_entropy
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = chooses(rows)
    return row_entropy(rows).exp() * counted, counted


EFFECTIVE_KEYS = Metric(
    name="effective_keys",
    title=Text("effective number of keys", "有效键数"),
    formula="mean_i exp(H(i)), H the entropy of row i; from 1 to the number of allowed keys",
    source="the perplexity of each row; the mean is taken after the exponential",
    share=False,
    sums=_sums,
)
