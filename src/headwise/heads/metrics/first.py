"""How much a head looks at the first token: an attention sink."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.at(rows.first[:, None].expand_as(rows.counts))


FIRST = Metric(
    name="first",
    title=Text("share on the first token", "对首个词元的份额"),
    formula="mean_i A[i, f], f the first real token, over the queries that may attend to it",
    source="Gu et al. 2025 (ICLR), importance α of the first key; depends on the length",
    share=True,
    sums=_sums,
)
