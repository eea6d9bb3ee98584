"""How much a head looks at the token it is at."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.shifted(0)


SELF = Metric(
    name="self",
    label=Text("self"),
    title=Text("share on the token itself"),
    formula=Text("mean_i A[i, i], over the queries that may attend to themselves"),
    source=Text("Clark et al. 2019, section 3.1"),
    share=True,
    reads=("single",),
    sums=_sums,
)
