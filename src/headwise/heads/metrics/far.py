"""How much a head looks at words far away."""

import torch

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.heads.metrics.rows import NEAR
from headwise.lang import Text


def _sums(rows: Rows) -> Sums:
    if rows.position is None:
        return rows.nothing
    near, offered = rows.near
    reach = torch.arange(-NEAR, NEAR + 1, device=near.device)
    key = rows.position[:, None] + reach  # (R, 2 NEAR + 1)
    inside = (key >= 0) & (key < rows.weights.shape[-1])
    plain = rows.plain[:, key.where(inside, 0)] & inside  # (B, R, 2 NEAR + 1)
    beside = (near * plain[:, None]).sum(-1)
    many = rows.offered("plain") - (offered & plain[:, None]).sum(-1)
    weight, _ = rows.on("plain")
    counted = (many > 0) & rows.queries()
    return (weight - beside).clamp(min=0) * counted, counted


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
    sums=_sums,
)
