"""Whether a head always looks to one side: where its largest weight lies."""

from collections.abc import Callable

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _at(offset: int) -> Callable[[Rows], Sums]:
    def sums(rows: Rows) -> Sums:
        if rows.offer.position is None:
            return rows.nothing
        counted = rows.shifted(offset)[1]
        _, key = rows.most
        return (key == rows.offer.position + offset) & counted, counted

    return sums


MOSTLY_PREVIOUS = Metric(
    name="mostly_previous",
    label=Text("prev. most", "多为前一"),
    title=Text("how often its heaviest key is the previous token", "最重的键是前一个词元的比例"),
    formula=Text(
        "share of queries with argmax_j A[i,j] = i - 1, of those that may attend to it",
        "argmax_j A[i,j] = i - 1 的查询比例，只计可关注该键的查询",
    ),
    source=Text(
        "Voita et al. 2019, section 4.1: positional from 0.9 on",
        "Voita 等 2019，第 4.1 节：达到 0.9 为位置头",
    ),
    share=False,
    reads=("single", "most"),
    sums=_at(-1),
)


MOSTLY_NEXT = Metric(
    name="mostly_next",
    label=Text("next most", "多为后一"),
    title=Text("how often its heaviest key is the next token", "最重的键是后一个词元的比例"),
    formula=Text(
        "share of queries with argmax_j A[i,j] = i + 1, of those that may attend to it",
        "argmax_j A[i,j] = i + 1 的查询比例，只计可关注该键的查询",
    ),
    source=Text(
        "Voita et al. 2019, section 4.1: positional from 0.9 on",
        "Voita 等 2019，第 4.1 节：达到 0.9 为位置头",
    ),
    share=False,
    reads=("single", "most"),
    sums=_at(1),
)
