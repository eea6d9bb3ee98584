"""How much a head looks at the token after."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.shifted(1)


NEXT = Metric(
    name="next",
    label=Text("next"),
    title=Text("share on the next token"),
    formula=Text("mean_i A[i, i+1], over the queries that have an allowed token after them"),
    source=Text("Clark et al. 2019, section 3.1; a mean over N - 1, in their code over N"),
    share=True,
    reads=("single",),
    sums=_sums,
)
