"""How much the first tokens of a text hold of the attention on the first of all."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.heads.metrics.offer import EARLY
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    if rows.offer.position is None:
        return rows.nothing
    early = (rows.offer.position - rows.offer.first[:, None] < EARLY)[:, None]  # (B, 1, R)
    counted = rows.offer.on_first & early
    return rows.on_first * counted, counted


SINK = Metric(
    name="sink",
    label=Text("sink"),
    title=Text("attention that the first token receives from the first 64"),
    formula=Text(
        "α_1 = mean_i A[i, f] over the queries f ≤ i < f + 64 that may attend to f, "
        "the first real token"
    ),
    source=Text("Gu et al. 2025 (ICLR), importance of the first token, T = 64; a sink above 0.3"),
    share=True,
    reads=("single",),
    sums=_sums,
)
