"""How much a head looks at special tokens that are not the first."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.on("separators")


SEPARATORS = Metric(
    name="separators",
    label=Text("separators", "分隔符"),
    title=Text("share on separators", "对分隔符的份额"),
    formula=Text(
        "mean_i Σ_{j in S} A[i,j], S the special tokens, such as [SEP], after the first token, "
        "over the queries that may attend to one",
        "mean_i Σ_{j ∈ S} A[i,j]，S 为首个词元之后的特殊词元，如 [SEP]，只计可关注其一的查询",
    ),
    source=Text(
        "Clark et al. 2019, section 3.2; the first token ([CLS]) is apart there too: `first`",
        "Clark 等 2019，第 3.2 节；首个词元（[CLS]）在那里也单独统计，见 first",
    ),
    share=True,
    reads=("sets",),
    sums=_sums,
)
