"""How widely a head spreads its attention."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.chooses
    return rows.entropy * counted, counted


ENTROPY = Metric(
    name="entropy",
    label=Text("entropy", "熵"),
    title=Text("entropy of the attention, in nats", "注意力的熵（奈特）"),
    formula=Text(
        "mean_i -Σ_j A[i,j] log A[i,j], over the queries that may attend to two keys or more",
        "mean_i -Σ_j A[i,j] log A[i,j]，只计可关注至少两个键的查询",
    ),
    source=Text(
        "Clark et al. 2019, section 3.2, without the smoothing of their code",
        "Clark 等 2019，第 3.2 节；不做其代码中的平滑",
    ),
    share=False,
    reads=("entropy", "chooses"),
    sums=_sums,
)
