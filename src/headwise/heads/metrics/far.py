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
    label=Text("far", "远处"),
    title=Text("share on words more than 16 tokens away", "对 16 个词元以外的词的份额"),
    formula=Text(
        "mean_i Σ_{|i-j| > 16} A[i,j], j neither first nor special, for queries that have one",
        "mean_i Σ_{|i-j| > 16} A[i,j]，j 非首个词元也非特殊词元，只计存在此键的查询",
    ),
    source=Text(
        "ours: sinks and separators, which lie far from most queries, are left out",
        "本项目自定：不计离多数查询都远的首个词元与分隔符",
    ),
    share=True,
    reads=("single", "near_words", "sets"),
    sums=_sums,
)
