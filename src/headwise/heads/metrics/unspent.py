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
        "share that goes to a learned sink or an appended key and to no token",
        "归于可学习的汇或附加的键、不给任何词元的份额",
    ),
    formula=Text(
        "mean_i 1 - Σ_j A[i,j], j the tokens; 0 without learned sinks, add_bias_kv, add_zero_attn",
        "mean_i 1 - Σ_j A[i,j]，j 为词元；没有可学习的汇、add_bias_kv 与 add_zero_attn 时为 0",
    ),
    source=Text(
        "the sink of gpt-oss (OpenAI 2025), whose column is not a token",
        "gpt-oss（OpenAI 2025）的汇，其列不是词元",
    ),
    share=False,
    reads=("mass",),
    sums=_sums,
)
