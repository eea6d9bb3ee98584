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
    label=Text("prev. most"),
    title=Text("how often its heaviest key is the previous token"),
    formula=Text("share of queries with argmax_j A[i,j] = i - 1, of those that may attend to it"),
    source=Text("Voita et al. 2019, section 4.1: positional from 0.9 on"),
    share=False,
    reads=("single", "most"),
    sums=_at(-1),
)


MOSTLY_NEXT = Metric(
    name="mostly_next",
    label=Text("next most"),
    title=Text("how often its heaviest key is the next token"),
    formula=Text("share of queries with argmax_j A[i,j] = i + 1, of those that may attend to it"),
    source=Text("Voita et al. 2019, section 4.1: positional from 0.9 on"),
    share=False,
    reads=("single", "most"),
    sums=_at(1),
)
