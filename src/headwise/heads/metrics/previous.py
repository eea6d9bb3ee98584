"""How much a head looks at the token before."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.shifted(-1)


PREVIOUS = Metric(
    name="previous",
    title=Text("share on the previous token", "对前一个词元的份额"),
    formula="mean_i A[i, i-1], over the queries that have an allowed token before them",
    source="Clark et al. 2019, section 3.1; a mean over N - 1, in their code over N",
    share=True,
    sums=_sums,
)
