"""Attention to repeated tokens and to what followed them: duplicate and induction heads."""

from collections.abc import Callable

import torch

from headwise.heads.metrics.metric import Metric, Rows, Sums
from headwise.lang import Text

DUPLICATE = Metric(
    name="duplicate",
    label=Text("duplicate"),
    title=Text("share on other occurrences of the same token"),
    formula=Text(
        "mean_i Σ_j A[i,j] over the keys with x[j] = x[i], j ≠ i, for the queries that have one"
    ),
    source=Text("the duplicate-token head of Wang et al. 2023, section 3.1, as a share"),
    share=False,  # few queries have one: on one text no head stands out by it
    reads=("repeats",),
    sums=lambda rows: rows.on_repeats("same"),
)

INDUCTION = Metric(
    name="induction",
    label=Text("induction"),
    title=Text("share on what followed an earlier occurrence of the token"),
    formula=Text(
        "mean_i Σ_j A[i,j] over the keys with x[j-1] = x[i], j ≠ i+1, for queries that have one"
    ),
    source=Text(
        "Olsson et al. 2022, prefix matching; theirs is on 25 random tokens repeated 4 times"
    ),
    share=False,  # few queries have one: on one text no head stands out by it
    reads=("repeats",),
    sums=lambda rows: rows.on_repeats("after"),
)


def _stripe(rows: Rows) -> Sums:
    counted = rows.context.on_stripe
    return rows.on_stripe * counted, counted


STRIPE = Metric(
    name="stripe",
    label=Text("stripe"),
    title=Text("share on what followed the token one period ago"),
    formula=Text(
        "mean_i A[i, i-n+1] over the queries i ≥ n of a text that repeats itself every n tokens"
    ),
    source=Text(
        "induction stripe of TransformerLens; theirs counts the query n - 1 too, which has none"
    ),
    share=False,
    reads=("single",),
    sums=_stripe,
)


def _pattern(rows: Rows, name: str) -> Sums:
    """The weight of each row on the pattern, and how many keys the pattern has there."""
    if name == "near":
        return rows.shifted(-1)
    return rows.repeats[name], rows.context.repeats[name]


def _shows(rows: Rows, name: str) -> bool:
    """Whether the pattern can be drawn."""
    return rows.context.position is not None and (name == "near" or rows.context.tokens is not None)


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
