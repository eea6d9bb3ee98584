"""How sure a head is."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.most[0], rows.offer.queries


LARGEST = Metric(
    name="max",
    label=Text("max", "最大"),
    title=Text("largest weight", "最大权重"),
    formula=Text(
        "mean_i max_j A[i,j]",
        "mean_i max_j A[i,j]",
    ),
    source=Text(
        "Voita et al. 2019, section 5, confidence; they leave out queries whose key is EOS",
        "Voita 等 2019，第 5 节，置信度；原文不计键为 EOS 的查询",
    ),
    share=False,
    reads=("most",),
    sums=_sums,
)
