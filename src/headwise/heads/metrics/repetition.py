"""Metrics of attention to repeated tokens and the tokens after them: duplicates, induction."""

from dataclasses import dataclass

import torch

from headwise.heads.metrics.key_context import STRIPE_KEY
from headwise.heads.metrics.metric import Metric, Rows, Sums
from headwise.lang import Text

DUPLICATE = Metric(
    name="duplicate",
    label=Text("duplicate"),
    title=Text("share on other occurrences of the same token"),
    formula=Text(
        "mean_i Σ_j A[i,j] over the keys with x[j] = x[i], j ≠ i, for the queries with such a key"
    ),
    source=Text("Wang et al. 2023, section 3.1, duplicate-token heads; here as a share"),
    # not a `share` for highlights, since few queries have such keys
    reads=("repeats",),
    sums=lambda rows: rows.on_repeats("same"),
)

INDUCTION = Metric(
    name="induction",
    label=Text("induction"),
    title=Text("share on the token after another occurrence of the same token"),
    formula=Text(
        "mean_i Σ_j A[i,j] over the keys with x[j-1] = x[i], j ≠ i+1, for queries with such keys"
    ),
    source=Text(
        "Olsson et al. 2022, prefix matching; the paper uses 25 random tokens repeated 4 times"
    ),
    # not a `share` for highlights, since few queries have such keys
    reads=("repeats",),
    sums=lambda rows: rows.on_repeats("after"),
)

STRIPE = Metric(
    name="stripe",
    label=Text("stripe"),
    title=Text("share on the token after the same token one period earlier"),
    formula=Text("mean_i A[i, i-n+1] over the queries i ≥ n of a text that repeats every n tokens"),
    source=Text(
        "induction stripe of TransformerLens, which also counts query n - 1, without such a key"
    ),
    reads=("single",),
    sums=lambda rows: rows.on_single(STRIPE_KEY),
)


@dataclass(frozen=True)
class _Pattern:
    """A pattern of TransformerLens' `detect_head`; ``keys`` is a kind in `query_facts.NAMES`.

    ``keys`` is None for the previous token.
    """

    name: str
    keys: str | None
    short: Text
    title: Text

    @property
    def reads(self) -> tuple[str, str]:
        return ("single" if self.keys is None else "repeats", "mass")

    def sums(self, rows: Rows) -> Sums | None:
        """Return weight and number of keys of the pattern in each row; None if unknown."""
        if rows.context.position is None or (self.keys and rows.context.tokens is None):
            return None
        if self.keys is None:
            return rows.shifted(-1)
        return rows.repeats[self.keys], rows.context.repeats[self.keys]


def _mul(pattern: _Pattern) -> Metric:
    def sums(rows: Rows) -> Sums:
        on_pattern = pattern.sums(rows)
        return rows.nothing if on_pattern is None else (on_pattern[0], rows.mass)

    return Metric(
        name=f"{pattern.name}_mul",
        label=Text("{pattern} mul", pattern=pattern.short),
        title=Text('detect_head "mul": {pattern}', pattern=pattern.title),
        formula=Text(
            "Σ_i Σ_j A[i,j] P[i,j] / Σ_i Σ_j A[i,j], P = 1 on {pattern}", pattern=pattern.title
        ),
        source=Text("detect_head of TransformerLens, not rounded; rows without such keys count"),
        reads=pattern.reads,
        sums=sums,
    )


def _abs(pattern: _Pattern) -> Metric:
    def sums(rows: Rows) -> Sums:
        on_pattern = pattern.sums(rows)
        if on_pattern is None:
            return rows.nothing
        weight, count = on_pattern  # |A - P| is 1 - A on the pattern and A elsewhere
        return 1 - (rows.mass + count - 2 * weight), torch.ones_like(rows.mass)

    return Metric(
        name=f"{pattern.name}_abs",
        label=Text("{pattern} abs", pattern=pattern.short),
        title=Text('detect_head "abs": {pattern}', pattern=pattern.title),
        formula=Text(
            "1 - Σ_i Σ_j |A[i,j] - P[i,j]| / N, P = 1 on {pattern}", pattern=pattern.title
        ),
        source=Text("detect_head of TransformerLens, not rounded to 3 decimals; N queries"),
        reads=pattern.reads,
        sums=sums,
    )


_PATTERNS = (
    _Pattern("previous", None, Text("previous"), Text("the previous token")),
    _Pattern("duplicate", "earlier_same", Text("duplicate"), Text("earlier equal tokens")),
    _Pattern(
        "induction",
        "earlier_after",
        Text("induction"),
        Text("the tokens after earlier equal tokens"),
    ),
)
PREVIOUS_MUL, DUPLICATE_MUL, INDUCTION_MUL = map(_mul, _PATTERNS)
PREVIOUS_ABS, DUPLICATE_ABS, INDUCTION_ABS = map(_abs, _PATTERNS)
_MUL = (PREVIOUS_MUL, DUPLICATE_MUL, INDUCTION_MUL)
DETECT_HEAD = (*_MUL, PREVIOUS_ABS, DUPLICATE_ABS, INDUCTION_ABS)
