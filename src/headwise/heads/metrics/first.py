"""How much a head looks at the first token: an attention sink."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.on_first
    return rows.on_first * counted, counted


FIRST = Metric(
    name="first",
    label=Text("first"),
    title=Text("share on the first token"),
    formula=Text("mean_i A[i, f], f the first real token, over the queries that may attend to it"),
    source=Text("Gu et al. 2025 (ICLR), importance α of the first key; depends on the length"),
    share=True,
    reads=("single",),
    sums=_sums,
)
