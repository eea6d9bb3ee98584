"""How much a head looks at the first token: an attention sink."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.on_first
    return rows.on_first * counted, counted


FIRST = Metric(
    name="first",
    label=Text("first", "首个"),
    title=Text("share on the first token", "对首个词元的份额"),
    formula=Text(
        "mean_i A[i, f], f the first real token, over the queries that may attend to it",
        "mean_i A[i, f]，f 为首个真实词元，只计可关注它的查询",
    ),
    source=Text(
        "Gu et al. 2025 (ICLR), importance α of the first key; depends on the length",
        "Gu 等 2025（ICLR），首个键的重要性 α；与长度有关",
    ),
    share=True,
    reads=("single",),
    sums=_sums,
)
