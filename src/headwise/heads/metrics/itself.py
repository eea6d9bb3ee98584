"""How much a head looks at the token it is at."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.shifted(0)


SELF = Metric(
    name="self",
    label=Text("self", "自身"),
    title=Text("share on the token itself", "对自身的份额"),
    formula=Text(
        "mean_i A[i, i], over the queries that may attend to themselves",
        "mean_i A[i, i]，只计可关注自身的查询",
    ),
    source=Text(
        "Clark et al. 2019, section 3.1",
        "Clark 等 2019，第 3.1 节",
    ),
    share=True,
    reads=("single",),
    sums=_sums,
)
