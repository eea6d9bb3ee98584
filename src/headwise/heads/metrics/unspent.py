"""How much of its attention a head gives to no token."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.queries
    return (1 - rows.mass).clamp(min=0) * counted, counted


UNSPENT = Metric(
    name="unspent",
    label=Text("unspent"),
    title=Text("share that goes to a learned sink or an appended key and to no token"),
    formula=Text(
        "mean_i 1 - Σ_j A[i,j], j the tokens; 0 without learned sinks, add_bias_kv, add_zero_attn"
    ),
    source=Text("the sink of gpt-oss (OpenAI 2025), whose column is not a token"),
    share=False,
    reads=("mass",),
    sums=_sums,
)
