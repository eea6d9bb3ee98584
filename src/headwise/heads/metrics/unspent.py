"""How much of its attention a head gives to no token."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.queries
    return (1 - rows.mass).clamp(min=0) * counted, counted


UNSPENT = Metric(
    name="unspent",
    label=Text("unspent", "未用"),
    title=Text(
        "share that goes to a learned sink and to no token",
        "归于可学习的汇、不给任何词元的份额",
    ),
    formula=Text(
        "mean_i 1 - Σ_j A[i,j]; 0 in a model without learned sinks",
        "mean_i 1 - Σ_j A[i,j]；没有可学习的汇的模型为 0",
    ),
    source=Text(
        "the sink of gpt-oss (OpenAI 2025), whose column is not a token",
        "gpt-oss（OpenAI 2025）的汇，其列不是词元",
    ),
    share=False,
    reads=("mass",),
    sums=_sums,
)
