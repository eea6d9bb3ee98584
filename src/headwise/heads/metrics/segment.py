"""How much a head looks within the part of the text between two separators."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.segment
    return rows.segment * counted, counted


SEGMENT = Metric(
    name="segment",
    label=Text("segment", "段内"),
    title=Text("share within its own part of the text", "对自身所在文段的份额"),
    formula=Text(
        "mean_i Σ_j A[i,j], j between the same separators as i, over the queries that may attend "
        "there and elsewhere",
        "mean_i Σ_j A[i,j]，j 与 i 在同两个分隔符之间，只计可关注该处与他处的查询",
    ),
    source=Text(
        "the block class of Kovaleva et al. 2019 as a rule of ours; no threshold was published",
        "Kovaleva 等 2019 的块状类，规则由本项目自定；原文未给阈值",
    ),
    share=False,
    reads=("segment",),
    sums=_sums,
)
