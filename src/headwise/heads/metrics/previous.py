"""How much a head looks at the token before."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.shifted(-1)


PREVIOUS = Metric(
    name="previous",
    label=Text("previous", "前一个"),
    title=Text("share on the previous token", "对前一个词元的份额"),
    formula=Text(
        "mean_i A[i, i-1], over the queries that have an allowed token before them",
        "mean_i A[i, i-1]，只计前面有允许的词元的查询",
    ),
    source=Text(
        "Clark et al. 2019, section 3.1; a mean over N - 1, in their code over N",
        "Clark 等 2019，第 3.1 节；除以 N - 1，其代码除以 N",
    ),
    share=True,
    reads=("single",),
    sums=_sums,
)
