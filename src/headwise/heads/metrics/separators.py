"""How much a head looks at special tokens that are not the first."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    return rows.on("separators")


SEPARATORS = Metric(
    name="separators",
    label=Text("separators"),
    title=Text("share on separators"),
    formula=Text(
        "mean_i Σ_{j in S} A[i,j], S the special tokens, such as [SEP], after the "
        "first token, over the queries that may attend to one"
    ),
    source=Text(
        "Clark et al. 2019, section 3.2; the first token ([CLS]) is apart there too: `first`"
    ),
    share=True,
    reads=("sets",),
    sums=_sums,
)
