"""How much a head looks at words far away."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    if rows.offer.position is None:
        return rows.nothing
    words = rows.offer.near_words
    beside = (rows.near * words).sum(-1)
    many = rows.offer.sets["plain"] - (rows.offer.near & words).sum(-1)
    counted = (many > 0) & rows.offer.queries
    return (rows.on("plain")[0] - beside).clamp(min=0) * counted, counted


FAR = Metric(
    name="far",
    label=Text("far"),
    title=Text("share on words more than 16 tokens away"),
    formula=Text(
        "mean_i Σ_{|i-j| > 16} A[i,j], j neither first nor special, for queries that have one"
    ),
    source=Text("ours: sinks and separators, which lie far from most queries, are left out"),
    share=True,
    reads=("single", "near_words", "sets"),
    sums=_sums,
)
