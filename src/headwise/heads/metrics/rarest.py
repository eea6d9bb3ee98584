"""How often a head looks at the rarest word."""

import torch

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text

COMMON = 500
"""Texts whose rarest word is among so many of the most frequent do not count."""


def _sums(rows: Rows) -> Sums:
    if rows.tokens is None:
        return rows.nothing
    ranks = torch.where(rows.plain, rows.tokens, -1)[:, None, None]  # (B, 1, 1, Lk)
    rarest = torch.where(rows.allowed, ranks, -1).amax(-1)  # (B, H or 1, R)
    counted = (rarest >= COMMON) & rows.queries()
    _, key = rows.most
    looked = ranks[:, 0].expand(*key.shape[:2], -1).gather(-1, key)
    return (looked == rarest) & counted, counted


RAREST = Metric(
    name="rarest",
    label=Text("rarest", "最罕见"),
    title=Text("how often its heaviest key is the rarest word", "最重的键是最罕见词的比例"),
    formula=Text(
        "share of queries whose argmax_j A[i,j] has the rarest token allowed, outside the top 500",
        "argmax_j A[i,j] 为可关注的最罕见词元的查询比例，词频前 500 不计",
    ),
    source=Text(
        "Voita et al. 2019, section 4.3; the number of a token stands for its rank in frequency",
        "Voita 等 2019，第 4.3 节；以词元编号代替词频排名",
    ),
    share=False,
    sums=_sums,
)
