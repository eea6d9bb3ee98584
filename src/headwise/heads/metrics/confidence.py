"""How sure a head is where it does not look at a separator."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    value, key = rows.most
    counted = rows.offer.queries.expand_as(value)
    if rows.offer.separators is not None:
        special = rows.offer.separators[:, None].expand(*value.shape[:2], -1)
        counted = counted & ~special.gather(-1, key)
    return value * counted, counted


CONFIDENCE = Metric(
    name="confidence",
    label=Text("confidence"),
    title=Text("largest weight, where it is not on a separator"),
    formula=Text("mean_i max_j A[i,j], over the queries whose heaviest key is no separator"),
    source=Text("Voita et al. 2019, section 4.1; they leave out the end of the sentence"),
    share=False,
    reads=("most",),
    sums=_sums,
)
