"""How widely a head spreads its attention."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.chooses
    return rows.entropy * counted, counted


ENTROPY = Metric(
    name="entropy",
    label=Text("entropy"),
    title=Text("entropy of the attention, in nats"),
    formula=Text(
        "mean_i -Σ_j A[i,j] log A[i,j], over the queries that may attend to two keys or more"
    ),
    source=Text("Clark et al. 2019, section 3.2, without the smoothing of their code"),
    share=False,
    reads=("entropy", "chooses"),
    sums=_sums,
)
