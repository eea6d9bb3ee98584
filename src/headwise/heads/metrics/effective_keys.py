"""How many keys a head attends to, as if it shared its attention equally among them."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.chooses
    return rows.entropy.exp() * counted, counted


EFFECTIVE_KEYS = Metric(
    name="effective_keys",
    label=Text("keys", "有效键数"),
    title=Text("effective number of keys", "有效键数"),
    formula=Text(
        "mean_i exp(H(i)), H the entropy of row i; from 1 to the number of allowed keys",
        "mean_i exp(H(i))，H 为第 i 行的熵；范围从 1 到允许的键数",
    ),
    source=Text(
        "the perplexity of each row; the mean is taken after the exponential",
        "每一行的困惑度；先取指数再求平均",
    ),
    share=False,
    reads=("entropy", "chooses"),
    sums=_sums,
)
