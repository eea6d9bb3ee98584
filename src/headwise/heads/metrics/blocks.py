"""How much of its attention a head gives to few blocks of keys."""

import torch
from torch.nn import functional

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text

SIZE, SHARE = 16, 10
"""Keys in a block, and which part of the blocks is few: a tenth."""


def _sums(rows: Rows) -> Sums:
    before = rows.origin % SIZE  # blocks are counted from the start of the text
    around = (before, -(before + rows.weights.shape[-1]) % SIZE)
    weights = functional.pad(rows.weights, around) if any(around) else rows.weights
    shape = (*weights.shape[:-1], -1, SIZE)
    blocks = weights.reshape(shape) @ weights.new_ones(SIZE)  # (B, H, R, blocks)
    allowed = functional.pad(rows.allowed, around) if any(around) else rows.allowed
    seen = allowed.reshape(*allowed.shape[:-1], -1, SIZE).any(-1)
    few = -(-seen.sum(-1) // SHARE)  # (B, H or 1, R)
    heaviest = blocks.topk(-(-blocks.shape[-1] // SHARE), -1).values
    taken = torch.arange(heaviest.shape[-1], device=few.device) < few[..., None]
    counted = (seen.sum(-1) > 1) & rows.queries()
    return (heaviest * taken).sum(-1) * counted, counted


BLOCKS = Metric(
    name="blocks",
    label=Text("blocks", "块"),
    title=Text(
        "share on the heaviest tenth of blocks of 16 keys",
        "最重的十分之一个 16 键块的份额",
    ),
    formula=Text(
        "mean_i of the largest ⌈n / 10⌉ of the n sums of A[i,j] over blocks of 16 keys",
        "mean_i 每 16 键一块求和，n 块中最大的 ⌈n / 10⌉ 块之和",
    ),
    source=Text(
        "the block-sparse pattern of Jiang et al. 2024 (MInference), for single queries; ours",
        "Jiang 等 2024（MInference）的块稀疏模式，对单个查询；本项目自定",
    ),
    share=False,
    sums=_sums,
)
