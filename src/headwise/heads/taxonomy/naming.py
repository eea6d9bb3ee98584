"""The names of every head, from the evidence of two halves and of a random copy."""

import math
from collections.abc import Callable, Iterator
from itertools import chain

from headwise.errors import BadValue
from headwise.heads.intervals import holm
from headwise.heads.names import Head
from headwise.heads.taxonomy.criteria import CRITERIA
from headwise.heads.taxonomy.evidence import Evidence
from headwise.heads.taxonomy.trials import Trial
from headwise.heads.taxonomy.trying import Halves, diffuse, entities, redundant, shares, syntax
from headwise.lang import Text

TRIED: tuple[Callable[[Halves], Iterator[Trial]], ...] = (
    shares,
    diffuse,
    syntax,
    entities,
    redundant,
)
"""Everything that is tried on every head."""

Named = Trial
"""A name that a head was given: a trial whose corrected chance is small enough."""

UNEXPLAINED = "unexplained"


def taxonomy(
    first: Evidence, second: Evidence, random: Evidence, *, error: float = 0.05
) -> tuple[Named, ...]:
    """The names of every head, layer by layer; a head without any is "unexplained".

    Args:
        first: the evidence of one half of a corpus, which suggests names.
        second: that of the other half, on which they are tested and their values are reported.
        random: that of a random copy of the model over the whole corpus; see `random_copy`.
        error: the chance that a model without structure is given any name at all.

    Raises:
        BadValue: if ``error`` is no chance, or the halves saw different heads.

    Source: the test over texts and the correction are the idea of Pande et al. 2021; Holm 1979.
    """
    if not 0 < error < 1:
        raise BadValue(
            f"error: expected a chance between 0 and 1, got {error}; use error=0.05",
            f"error：应为 0 与 1 之间的概率，收到 {error}；可用 error=0.05",
        )
    heads = first.heads()
    if set(heads) != set(second.heads()) or not heads:
        raise BadValue(
            f"second: expected evidence of the {len(heads)} heads of the first half, got that of "
            f"{len(second.heads())}; give at least two texts to the same model",
            f"second：应为前一半中 {len(heads)} 个头的证据，收到 {len(second.heads())} 个头的；"
            "请用同一模型读至少两篇文本",
        )
    each = error / (len(heads) * (len(CRITERIA) + len(TRIED)))
    halves = Halves(first, second, random, each)
    tried = list(chain.from_iterable(tries(halves) for tries in TRIED))
    chances = holm([trial.chance for trial in tried])
    kept = [
        trial.corrected(chance)
        for trial, chance in zip(tried, chances, strict=True)
        if chance <= error
    ]
    named = {trial.head for trial in kept}
    kept += [_unexplained(head) for head in heads if head not in named]
    return tuple(sorted(kept, key=lambda trial: (trial.head, trial.chance)))


def _unexplained(head: Head) -> Trial:
    return Trial(
        head=head,
        name=UNEXPLAINED,
        title=Text("unexplained", "未能解释"),
        criterion=Text("no name could be shown", "没有可证明的名称"),
        found=math.nan,
        value=math.nan,
        bar=math.nan,
        uniform=math.nan,
        random=math.nan,
        rule=math.nan,
        texts=0,
        chance=1.0,
    )
