"""How much a head looks at punctuation."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.on("punctuation")


PUNCTUATION = Metric(
    name="punctuation",
    label=Text("punctuation", "标点"),
    title=Text("share on punctuation", "对标点的份额"),
    formula=Text(
        "mean_i Σ_{j in P} A[i,j], P the tokens of punctuation, for queries that may attend to one",
        "mean_i Σ_{j ∈ P} A[i,j]，P 为标点词元，只计可关注其一的查询",
    ),
    source=Text(
        "Clark et al. 2019, section 3.2, who take the full stop and the comma",
        "Clark 等 2019，第 3.2 节；原文取句号与逗号",
    ),
    share=True,
    reads=("sets",),
    sums=_sums,
)
