"""How much a head looks at punctuation."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.on("punctuation")


PUNCTUATION = Metric(
    name="punctuation",
    label=Text("punctuation"),
    title=Text("share on punctuation"),
    formula=Text(
        "mean_i Σ_{j in P} A[i,j], P the tokens of punctuation, for queries that may attend to one"
    ),
    source=Text("Clark et al. 2019, section 3.2, who take the full stop and the comma"),
    share=True,
    reads=("sets",),
    sums=_sums,
)
