"""How much a head looks at the token before."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.shifted(-1)


PREVIOUS = Metric(
    name="previous",
    label=Text("previous"),
    title=Text("share on the previous token"),
    formula=Text("mean_i A[i, i-1], over the queries that have an allowed token before them"),
    source=Text("Clark et al. 2019, section 3.1; a mean over N - 1, in their code over N"),
    share=True,
    reads=("single",),
    sums=_sums,
)
