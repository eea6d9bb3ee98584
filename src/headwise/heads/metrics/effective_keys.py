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
        "mean_i exp(H(i)), H the entropy of row i, over the queries that may attend to two "
        "keys or more",
        "mean_i exp(H(i))，H 为第 i 行的熵，只计可关注至少两个键的查询",
    ),
    source=Text(
        "the perplexity of each row, at most its allowed keys; the mean is after the exponential",
        "每一行的困惑度，至多为允许的键数；先取指数再求平均",
    ),
    share=False,
    reads=("entropy", "chooses"),
    sums=_sums,
)
