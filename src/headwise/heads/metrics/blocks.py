"""How much of its attention a head gives to few blocks of keys."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = (rows.offer.blocks > 1) & rows.offer.queries
    return rows.blocks * counted, counted


BLOCKS = Metric(
    name="blocks",
    label=Text("blocks"),
    title=Text("share on the heaviest tenth of blocks of 16 keys"),
    formula=Text(
        "mean_i of the largest ⌈n / 10⌉ of the n sums of A[i,j] over blocks of 16 "
        "keys, over the queries with n > 1"
    ),
    source=Text(
        "the block-sparse pattern of Jiang et al. 2024 (MInference), for single queries; ours"
    ),
    share=False,
    reads=("blocks",),
    sums=_sums,
)
