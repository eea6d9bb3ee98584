"""How much of its attention a head gives to few blocks of keys."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    counted = (rows.offer.blocks > 1) & rows.offer.queries
    return rows.blocks * counted, counted


BLOCKS = Metric(
    name="blocks",
    label=Text("blocks", "块"),
    title=Text(
        "share on the heaviest tenth of blocks of 16 keys",
        "最重的十分之一个 16 键块的份额",
    ),
    formula=Text(
        "mean_i of the largest ⌈n / 10⌉ of the n sums of A[i,j] over blocks of 16 keys, "
        "over the queries with n > 1",
        "mean_i 每 16 键一块求和，n 块中最大的 ⌈n / 10⌉ 块之和，只计 n > 1 的查询",
    ),
    source=Text(
        "the block-sparse pattern of Jiang et al. 2024 (MInference), for single queries; ours",
        "Jiang 等 2024（MInference）的块稀疏模式，对单个查询；本项目自定",
    ),
    share=False,
    reads=("blocks",),
    sums=_sums,
)
