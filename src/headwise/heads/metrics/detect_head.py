"""The scores of a head against a drawn pattern, as TransformerLens computes them."""

from collections.abc import Callable

import torch

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text


def _pattern(rows: Rows, name: str) -> Sums:
    """The weight of each row on the pattern, and how many keys the pattern has there."""
    if name == "near":
        return rows.shifted(-1)
    return rows.repeats[name], rows.offer.repeats[name]


def _shows(rows: Rows, name: str) -> bool:
    """Whether the pattern can be drawn."""
    return rows.offer.position is not None and (name == "near" or rows.offer.tokens is not None)


def _mul(name: str) -> Callable[[Rows], Sums]:
    def sums(rows: Rows) -> Sums:
        return (_pattern(rows, name)[0], rows.mass) if _shows(rows, name) else rows.nothing

    return sums


def _abs(name: str) -> Callable[[Rows], Sums]:
    def sums(rows: Rows) -> Sums:
        if not _shows(rows, name):
            return rows.nothing
        on, many = _pattern(rows, name)  # |A - 1| is 1 - A on the pattern, |A - 0| is A beside it
        return 1 - (rows.mass + many - 2 * on), torch.ones_like(rows.mass)

    return sums


PREVIOUS_MUL = Metric(
    name="previous_mul",
    label=Text("prev. mul"),
    title=Text('detect_head "mul": previous token'),
    formula=Text("Σ_i Σ_j A[i,j] P[i,j] / Σ_i Σ_j A[i,j], P = 1 at previous token"),
    source=Text("detect_head of TransformerLens, not rounded; a row without such a key counts"),
    share=False,
    reads=("single", "mass"),
    sums=_mul("near"),
)


DUPLICATE_MUL = Metric(
    name="duplicate_mul",
    label=Text("dup. mul"),
    title=Text('detect_head "mul": an earlier place of the token'),
    formula=Text("Σ_i Σ_j A[i,j] P[i,j] / Σ_i Σ_j A[i,j], P = 1 at an earlier place of the token"),
    source=Text("detect_head of TransformerLens, not rounded; a row without such a key counts"),
    share=False,
    reads=("repeats", "mass"),
    sums=_mul("earlier_same"),
)


INDUCTION_MUL = Metric(
    name="induction_mul",
    label=Text("ind. mul"),
    title=Text('detect_head "mul": what followed an earlier place of the token'),
    formula=Text(
        "Σ_i Σ_j A[i,j] P[i,j] / Σ_i Σ_j A[i,j], P = 1 after an earlier place of the token"
    ),
    source=Text("detect_head of TransformerLens, not rounded; a row without such a key counts"),
    share=False,
    reads=("repeats", "mass"),
    sums=_mul("earlier_after"),
)


PREVIOUS_ABS = Metric(
    name="previous_abs",
    label=Text("prev. abs"),
    title=Text('detect_head "abs": previous token'),
    formula=Text("1 - Σ_i Σ_j |A[i,j] - P[i,j]| / N, P = 1 at previous token"),
    source=Text("detect_head of TransformerLens, not rounded to 3 places; N the queries"),
    share=False,
    reads=("single", "mass"),
    sums=_abs("near"),
)


DUPLICATE_ABS = Metric(
    name="duplicate_abs",
    label=Text("dup. abs"),
    title=Text('detect_head "abs": an earlier place of the token'),
    formula=Text("1 - Σ_i Σ_j |A[i,j] - P[i,j]| / N, P = 1 at an earlier place of the token"),
    source=Text("detect_head of TransformerLens, not rounded to 3 places; N the queries"),
    share=False,
    reads=("repeats", "mass"),
    sums=_abs("earlier_same"),
)


INDUCTION_ABS = Metric(
    name="induction_abs",
    label=Text("ind. abs"),
    title=Text('detect_head "abs": what followed an earlier place of the token'),
    formula=Text(
        "1 - Σ_i Σ_j |A[i,j] - P[i,j]| / N, P = 1 at what followed an earlier place of the token"
    ),
    source=Text("detect_head of TransformerLens, not rounded to 3 places; N the queries"),
    share=False,
    reads=("repeats", "mass"),
    sums=_abs("earlier_after"),
)
