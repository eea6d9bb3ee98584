"""How much a head looks within the part of the text between two separators."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = rows.offer.segment
    return rows.segment * counted, counted


SEGMENT = Metric(
    name="segment",
    label=Text("segment"),
    title=Text("share within its own part of the text"),
    formula=Text(
        "mean_i Σ_j A[i,j], j between the same separators as i, over the queries that "
        "may attend there and elsewhere"
    ),
    source=Text(
        "the block class of Kovaleva et al. 2019 as a rule of ours; no threshold was published"
    ),
    share=False,
    reads=("segment",),
    sums=_sums,
)
