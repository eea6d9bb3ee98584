"""Candidate names of heads, suggested by one half of a corpus and tested on the other half."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from headwise.heads.metrics import Metric
from headwise.heads.metrics.dispersion import NORMALISED_ENTROPY
from headwise.heads.metrics.distances import FAR, LOCAL, NEXT, PREVIOUS
from headwise.heads.metrics.repetition import DUPLICATE, INDUCTION
from headwise.heads.metrics.token_kinds import PUNCTUATION, SEPARATORS, SINK
from headwise.heads.names import Head
from headwise.heads.naming.annotations import DIRECTIONS, EVERYTHING, Direction
from headwise.heads.naming.evidence import Evidence
from headwise.heads.sums import t_quantile
from headwise.lang import Text


@dataclass(frozen=True)
class Trial:
    """A candidate name of a head, with its test.

    A value that is undefined or unknown is NaN.

    Attributes:
        head, name, title: the head, the name, and the name in both languages.
        criterion: the condition of the name.
        found: the value in the first half, which suggests the name.
        value: the value in the second half, an unbiased estimate.
        bar: the threshold of the value.
        uniform: the value of a head that attends to all keys equally.
        random: the largest value of the heads of the random copy.
        rule: the accuracy of the best fixed offset.
        texts: the number of texts of the second half in which the value is defined.
        chance: the p-value on the second half, or 1 if the first half did not suggest the name;
            after `corrected`, the p-value adjusted for all candidates.
    """

    head: Head
    name: str
    title: Text
    criterion: Text
    found: float = math.nan
    value: float = math.nan
    bar: float = math.nan
    uniform: float = math.nan
    random: float = math.nan
    rule: float = math.nan
    texts: int = 0
    chance: float = 1.0

    @property
    def confidence(self) -> float:
        """The confidence, 1 - ``chance``."""
        return 1 - self.chance

    def corrected(self, chance: float) -> "Trial":
        """Return the candidate with another p-value."""
        return replace(self, chance=chance)


@dataclass(frozen=True)
class Spread:
    """The prediction interval of another head of the random copy, and the largest value.

    The interval assumes normally distributed values and is extended to all heads of the copy.
    """

    low: float
    high: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float], chance: float) -> "Spread":
        """Return the prediction interval of another value; (-∞, -∞) without values."""
        numbers = [value for value in values if not math.isnan(value)]
        if not numbers:
            return cls(-math.inf, -math.inf, math.nan)
        if len(numbers) < 2:
            return cls(numbers[0], numbers[0], numbers[0])
        reach = t_quantile(chance / 2, len(numbers) - 1) * stdev(numbers)
        reach *= math.sqrt(1 + 1 / len(numbers))
        middle = mean(numbers)
        return cls(min(*numbers, middle - reach), max(*numbers, middle + reach), max(numbers))


LIFT = 2.0
"""The smallest ratio of a share to that of a uniform head. The idea is from the sieve of Pande et
al. 2021, whose formula is not published; the number is our choice."""


@dataclass(frozen=True)
class Criterion:
    """A name for heads whose share ``metric`` is above the threshold ``least`` of a ``source``."""

    name: str
    title: Text
    metric: Metric
    least: float
    source: Text

    @property
    def words(self) -> Text:
        """The criterion as a sentence."""
        return Text(
            "{title} above {least} ({source}), above {lift:g} times that of a uniform head, and "
            "above that of all heads of the random copy",
            title=self.metric.title,
            least=self.least,
            source=self.source,
            lift=LIFT,
        )


_CLARK = Text("code of Clark et al. 2019")
_OURS = Text("our threshold")

CRITERIA = (
    Criterion("previous-token", Text("previous-token"), PREVIOUS, 0.5, _CLARK),
    Criterion("next-token", Text("next-token"), NEXT, 0.5, _CLARK),
    Criterion("local", Text("local"), LOCAL, 0.5, _OURS),
    Criterion("long-range", Text("long-range"), FAR, 0.5, _OURS),
    Criterion("separator sink", Text("separator sink"), SEPARATORS, 0.6, _CLARK),
    Criterion(
        "first-token sink", Text("first-token sink"), SINK, 0.3, Text("Gu et al. 2025, T = 64")
    ),
    Criterion("punctuation", Text("punctuation"), PUNCTUATION, 0.6, _CLARK),
    Criterion("induction", Text("induction"), INDUCTION, 0.5, _OURS),
    Criterion("duplicate", Text("duplicate"), DUPLICATE, 0.5, _OURS),
)
"""Every name that depends on a single share."""

BETTER = 0.1  # the least advantage in accuracy over the best offset; Voita et al. 2019, 5.2.1
WIDE = 0.8  # least normalised entropy of a diffuse head: 3.8 of 4.85 nats, Clark et al. 2019, 3.2
NAMED, ALIKE = 1.5, 0.8  # our least lift of an entity head, least agreement of redundant heads


@dataclass(frozen=True)
class Halves:
    """The evidence that suggests names, the evidence that tests them, and that of a random copy.

    ``chance`` is one minus the level of the prediction interval of the heads of the copy.
    """

    first: Evidence
    second: Evidence
    random: Evidence
    chance: float

    def heads(self) -> tuple[Head, ...]:
        """Return the heads that are in both halves."""
        seen = set(self.second.heads())
        return tuple(head for head in self.first.heads() if head in seen)

    def spreads(self, metric: Metric) -> dict[str, Spread]:
        """Return the prediction interval of a metric for each part of the model."""
        values: dict[str, list[float]] = {head.layer.part: [] for head in self.heads()}
        for head in self.random.heads():
            if head.layer.part in values:
                values[head.layer.part].append(self.random.share(metric, head).value)
        return {part: Spread.of(own, self.chance) for part, own in values.items()}


def shares(halves: Halves) -> Iterator[Trial]:
    """Yield the candidates of `CRITERIA`."""
    for criterion in CRITERIA:
        metric, spreads = criterion.metric, halves.spreads(criterion.metric)
        for head in halves.heads():
            spread = spreads[head.layer.part]
            first_bar, bar = (  # NaN is never the maximum
                max(criterion.least, LIFT * half.uniform(metric, head), spread.high)
                for half in (halves.first, halves.second)
            )
            suggested, tested = halves.first.share(metric, head), halves.second.share(metric, head)
            yield Trial(
                head=head,
                name=criterion.name,
                title=criterion.title,
                criterion=criterion.words,
                found=suggested.value,
                value=tested.value,
                bar=bar,
                uniform=halves.second.uniform(metric, head),
                random=spread.largest,
                texts=tested.texts,
                chance=tested.tail(bar) if suggested.value > first_bar else 1.0,
            )


def diffuse(halves: Halves) -> Iterator[Trial]:
    """Yield candidates for high entropy outside the range of the nearly uniform random heads."""
    metric = NORMALISED_ENTROPY
    spreads = halves.spreads(metric)
    for head in halves.heads():
        spread = spreads[head.layer.part]
        first_share, tested = halves.first.share(metric, head), halves.second.share(metric, head)
        suggested = first_share.value > WIDE and not spread.low <= first_share.value <= spread.high
        beyond = tested.rest.tail(1 - spread.low), tested.tail(spread.high)
        yield Trial(
            head=head,
            name="diffuse",
            title=Text("diffuse"),
            criterion=Text(
                "{title} above {wide} (Clark et al. 2019), and outside the range of the "
                "heads of the random copy",
                title=metric.title,
                wide=WIDE,
            ),
            found=first_share.value,
            value=tested.value,
            bar=WIDE,
            uniform=1.0,
            random=spread.largest,
            texts=tested.texts,
            chance=max(tested.tail(WIDE), min(1.0, 2 * min(beyond))) if suggested else 1.0,
        )


def syntax(halves: Halves) -> Iterator[Trial]:
    """Yield candidates for each relation, in the direction with more accuracy in the first half."""
    first, second, random = halves.first.syntax, halves.second.syntax, halves.random.syntax
    heads = [head for head in first.heads() if head in set(second.heads())]
    for relation in first.relations():
        if relation == EVERYTHING or not second.count(relation):
            continue
        spreads = {}
        for way in DIRECTIONS:
            values = [random.accuracy(copy, relation, way) for copy in random.heads()]
            spreads[way] = Spread.of(values, halves.chance)
        for head in heads:
            ways = [(first.accuracy(head, relation, way), way) for way in DIRECTIONS]
            accuracy, way = max(ways, key=lambda pair: pair[0])
            yield _relation(halves, head, relation, (accuracy, way), spreads[way])


def _relation(
    halves: Halves, head: Head, relation: str, suggested: tuple[float, Direction], spread: Spread
) -> Trial:
    first, second = halves.first.syntax, halves.second.syntax
    (accuracy, way), offset = suggested, first.best_offset(relation)
    tested = second.share(head, relation, way)
    fitted = first.baseline(relation, first).accuracy
    rule = second.baseline(relation, first).accuracy
    chance = 1.0
    if accuracy > max(fitted + BETTER, spread.high):
        beyond_rule = second.tail(head, relation, way, offset=offset, margin=BETTER)
        chance = max(beyond_rule, tested.tail(spread.high))
    side = Text("dependent to head" if way == "to head" else "head to dependent")
    return Trial(
        head=head,
        name=f"syntax: {relation}",
        title=Text("syntax: {relation}", relation=relation),
        criterion=Text(
            "accuracy on {relation} ({side}) more than {better:g} above the best fixed offset from "
            "the other half (Voita et al. 2019), and above all heads of the random copy",
            relation=relation,
            side=side,
            better=BETTER,
        ),
        found=accuracy,
        value=tested.value,
        bar=max(rule + BETTER, spread.high),
        random=spread.largest,
        rule=rule,
        texts=tested.texts,
        chance=chance,
    )


def entities(halves: Halves) -> Iterator[Trial]:
    """Yield candidates for attention to named entities."""
    first, second, random = halves.first.entities, halves.second.entities, halves.random.entities
    spread = Spread.of([random.lift(copy) for copy in random.heads()], halves.chance)
    for head in first.heads():
        found, value, bar = first.lift(head), second.lift(head), max(NAMED, spread.high)
        yield Trial(
            head=head,
            name="entity",
            title=Text("entity"),
            criterion=Text(
                "attention to named entities more than {named:g} times that to equally long "
                "spans elsewhere (our threshold), and above all heads of the random copy",
                named=NAMED,
            ),
            found=found,
            value=value,
            bar=bar,
            uniform=1.0,
            random=spread.largest,
            texts=second.count()[0],
            chance=second.tail(head, bar) if found > bar else 1.0,
        )


def redundant(halves: Halves) -> Iterator[Trial]:
    """Yield candidates for each head and the most similar head in the first half."""
    second = halves.second.similarity
    copies = [agreement for _, agreement in _partners(halves.random).values()]
    spread = Spread.of(copies, halves.chance)
    bar = max(ALIKE, spread.high)
    tested_heads = set(second.heads())
    for head, (partner, agreement) in _partners(halves.first).items():
        if not {head, partner} <= tested_heads:
            continue
        tested = second.share(head, partner).rest
        yield Trial(
            head=head,
            name=f"redundant with {partner}",
            title=Text("redundant with {partner}", partner=partner),
            criterion=Text(
                "agreement with another head, relative to a uniform head, above {alike:g} "
                "(our threshold), and above all heads of the random copy",
                alike=ALIKE,
            ),
            found=agreement,
            value=tested.value,
            bar=bar,
            uniform=0.0,
            random=spread.largest,
            texts=tested.texts,
            chance=tested.tail(bar) if agreement > bar else 1.0,
        )


def _partners(evidence: Evidence) -> dict[Head, tuple[Head, float]]:
    """Return for each head the head with the highest agreement, and the agreement."""
    partners: dict[Head, tuple[Head, float]] = {}
    for one, other in evidence.similarity.pairs():
        agreement = evidence.similarity.agreement(one, other)
        for head, partner in ((one, other), (other, one)):
            if not math.isnan(agreement) and agreement > partners.get(head, (head, -math.inf))[1]:
                partners[head] = (partner, agreement)
    return partners


Candidates = Callable[[Halves], Iterator[Trial]]

TRIED: tuple[Candidates, ...] = (shares, diffuse, syntax, entities, redundant)
"""The generators of all candidates for every head."""
