"""Assign names to heads, from the evidence of two halves and of a random copy."""

import math
from collections.abc import Callable, Iterator
from itertools import chain

from headwise.errors import BadValue
from headwise.heads.names import Head
from headwise.heads.naming.candidates import (
    CRITERIA,
    Halves,
    diffuse,
    entities,
    redundant,
    shares,
    syntax,
)
from headwise.heads.naming.claim import Trial
from headwise.heads.naming.evidence import Evidence
from headwise.heads.statistics.inference import holm
from headwise.lang import Text

TRIED: tuple[Callable[[Halves], Iterator[Trial]], ...] = (
    shares,
    diffuse,
    syntax,
    entities,
    redundant,
)
"""All candidates, for every head."""

Named = Trial
"""A name that was assigned: a claim with a small enough corrected p-value."""

UNEXPLAINED = "unexplained"


def taxonomy(
    first: Evidence, second: Evidence, random: Evidence, *, error: float = 0.05
) -> tuple[Named, ...]:
    """The names of every head, layer by layer; a head without name is "unexplained".

    Args:
        first: the evidence of one half of a corpus, which suggests names.
        second: the evidence of the other half, on which names are tested and values reported.
        random: the evidence of a random copy of the model on all texts; see `random_copy`.
        error: the family-wise error rate: the probability that a model without structure is given
            any name.

    Raises:
        BadValue: if ``error`` is no probability, or the halves have different heads.

    Source: the test over texts and the correction are the idea of Pande et al. 2021; Holm 1979.
    """
    if not 0 < error < 1:
        raise BadValue(
            "error: expected a chance between 0 and 1, got {error}; use error=0.05", error=error
        )
    heads = first.heads()
    if set(heads) != set(second.heads()) or not heads:
        raise BadValue(
            "second: expected evidence of the {num_heads} heads of the first half, got "
            "that of {num_heads_2}; give at least two texts to the same model",
            num_heads=len(heads),
            num_heads_2=len(second.heads()),
        )
    level = error / (len(heads) * (len(CRITERIA) + len(TRIED)))
    halves = Halves(first, second, random, level)
    claims = list(chain.from_iterable(candidates(halves) for candidates in TRIED))
    chances = holm([trial.chance for trial in claims])
    assigned = [
        trial.corrected(chance)
        for trial, chance in zip(claims, chances, strict=True)
        if chance <= error
    ]
    named = {trial.head for trial in assigned}
    assigned += [_unexplained(head) for head in heads if head not in named]
    return tuple(sorted(assigned, key=lambda trial: (trial.head, trial.chance)))


def _unexplained(head: Head) -> Trial:
    return Trial(
        head=head,
        name=UNEXPLAINED,
        title=Text("unexplained"),
        criterion=Text("no name could be shown"),
        found=math.nan,
        value=math.nan,
        bar=math.nan,
        uniform=math.nan,
        random=math.nan,
        rule=math.nan,
        texts=0,
        chance=1.0,
    )
