"""Attention to the previous token, the next token and the token itself."""

from collections.abc import Callable

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text

PREVIOUS = Metric(
    name="previous",
    label=Text("previous"),
    title=Text("share on the previous token"),
    formula=Text("mean_i A[i, i-1], over the queries that have an allowed token before them"),
    source=Text("Clark et al. 2019, section 3.1; a mean over N - 1, in their code over N"),
    share=True,
    reads=("single",),
    sums=lambda rows: rows.shifted(-1),
)

NEXT = Metric(
    name="next",
    label=Text("next"),
    title=Text("share on the next token"),
    formula=Text("mean_i A[i, i+1], over the queries that have an allowed token after them"),
    source=Text("Clark et al. 2019, section 3.1; a mean over N - 1, in their code over N"),
    share=True,
    reads=("single",),
    sums=lambda rows: rows.shifted(1),
)

SELF = Metric(
    name="self",
    label=Text("self"),
    title=Text("share on the token itself"),
    formula=Text("mean_i A[i, i], over the queries that may attend to themselves"),
    source=Text("Clark et al. 2019, section 3.1"),
    share=True,
    reads=("single",),
    sums=lambda rows: rows.shifted(0),
)


def _at(offset: int) -> Callable[[Rows], Sums]:
    def sums(rows: Rows) -> Sums:
        if rows.context.position is None:
            return rows.nothing
        counted = rows.shifted(offset)[1]
        _, key = rows.most
        return (key == rows.context.position + offset) & counted, counted

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
