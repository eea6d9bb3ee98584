"""How much a head looks along the stripe of induction on a text that repeats itself."""

import torch
from torch import Tensor

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _period(tokens: Tensor) -> int:
    """After how many tokens a text repeats itself, at least once in full; 0 if it does not."""
    tokens = tokens[: int((tokens >= 0).sum())]  # padding stands behind, as -1
    same = (tokens == tokens[:1]).nonzero().flatten().tolist()
    for by in same[1:]:
        if 2 * by > len(tokens):
            break
        if torch.equal(tokens[by:], tokens[:-by]):
            return int(by)
    return 0


def _sums(rows: Rows) -> Sums:
    text = rows.tokens if rows.text is None else rows.text
    if text is None or rows.position is None:
        return rows.nothing
    starts = (rows.first + rows.origin).tolist()
    periods = [_period(each[at:]) for each, at in zip(text, starts, strict=True)]
    period = torch.tensor(periods, device=rows.weights.device)[:, None]  # (B, 1)
    repeated = (period > 0) & (rows.position - rows.first[:, None] >= period)  # (B, R)
    weight, counted = rows.at(rows.position - period + 1)
    return weight * repeated[:, None], counted & repeated[:, None]


STRIPE = Metric(
    name="stripe",
    label=Text("stripe", "条纹"),
    title=Text(
        "share on what followed the token one period ago",
        "对一个周期前同一词元后一位的份额",
    ),
    formula=Text(
        "mean_i A[i, i-n+1] over the queries i ≥ n of a text that repeats itself every n tokens",
        "mean_i A[i, i-n+1]，i ≥ n，文本每 n 个词元重复一次",
    ),
    source=Text(
        "induction stripe of TransformerLens; theirs counts the query n - 1 too, which has none",
        "TransformerLens 的归纳条纹；其代码还计入没有该键的查询 n - 1",
    ),
    share=False,
    sums=_sums,
)
