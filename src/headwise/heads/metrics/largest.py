"""How sure a head is."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.most[0], rows.offer.queries


LARGEST = Metric(
    name="max",
    label=Text("max"),
    title=Text("largest weight"),
    formula=Text("mean_i max_j A[i,j]"),
    source=Text(
        "Voita et al. 2019, section 5, confidence; they leave out queries whose key is EOS"
    ),
    share=False,
    reads=("most",),
    sums=_sums,
)
