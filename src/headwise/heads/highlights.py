"""Which heads stand out on a text, as facts with their numbers, and no more than that."""

import math
from dataclasses import dataclass
from statistics import median

from headwise.heads.metrics import METRICS, Metric
from headwise.heads.names import Head
from headwise.heads.statistics import Statistics

MOSTLY = 0.5
"""The share from which a head is said to look somewhere. Source: Clark et al. 2019 (their code)."""

BEYOND_UNIFORM = 2.0
"""A share must also be this many times what a head gives that attends to everything alike: on a
text of three tokens half of the attention is no news."""


@dataclass(frozen=True)
class Fact:
    """One head gives most of its attention to one kind of token.

    Attributes:
        head: which.
        metric: the share it stands out by.
        value: that share.
        uniform: the share that a head which attends to everything alike would give.
        usual: the median share over all heads of the same part of the model.
    """

    head: Head
    metric: Metric
    value: float
    uniform: float
    usual: float


def highlights(statistics: Statistics) -> tuple[Fact, ...]:
    """Every head that gives most of its attention to one kind of token.

    A head is named once, by the largest of its shares. Those come first whose share is furthest
    above the median head's: one head in a model that looks at the previous token stands out more
    than one of thirty that look at the first.
    """
    facts = []
    for part in {layer.part: None for layer in statistics.layers}:
        heads = [head for head in statistics.heads() if head.layer.part == part]
        shares = {metric: _values(statistics, metric, heads) for metric in METRICS if metric.share}
        facts += [_strongest(statistics, head, shares) for head in heads]
    found = [fact for fact in facts if fact is not None and _says_something(fact)]
    return tuple(sorted(found, key=lambda fact: fact.usual - fact.value))


def _says_something(fact: Fact) -> bool:
    return fact.value > MOSTLY and fact.value >= BEYOND_UNIFORM * fact.uniform


def _values(statistics: Statistics, metric: Metric, heads: list[Head]) -> dict[Head, float]:
    """The heads that the metric has a value for: NaN means that no query could show it."""
    values = {head: statistics.value(metric, head) for head in heads}
    return {head: value for head, value in values.items() if not math.isnan(value)}


def _strongest(
    statistics: Statistics, head: Head, shares: dict[Metric, dict[Head, float]]
) -> Fact | None:
    known = [metric for metric, values in shares.items() if head in values]
    if not known:
        return None
    best = max(known, key=lambda metric: shares[metric][head])
    return Fact(
        head=head,
        metric=best,
        value=shares[best][head],
        uniform=statistics.uniform(best, head.layer),
        usual=median(shares[best].values()),
    )
