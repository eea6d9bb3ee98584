"""The entropy as the code of Clark et al. computes it."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.queries
    return rows.smoothed * counted, counted


SMOOTHED_ENTROPY = Metric(
    name="smoothed_entropy",
    label=Text("smoothed entropy"),
    title=Text("entropy after a little of a uniform head is mixed in, in nats"),
    formula=Text("mean_i -Σ_j A'[i,j] log A'[i,j], A' = 0.9999 A + 0.0001 / N, N all keys"),
    source=Text("the code of Clark et al. 2019; N counts keys that are not allowed as well"),
    share=False,
    reads=("smoothed",),
    sums=_sums,
)
