"""The names that rest on one metric: from which value on, and how far above a uniform head."""

from dataclasses import dataclass

from headwise.heads.metrics import Metric
from headwise.heads.metrics.distances import FAR, LOCAL
from headwise.heads.metrics.offsets import NEXT, PREVIOUS
from headwise.heads.metrics.repetition import DUPLICATE, INDUCTION
from headwise.heads.metrics.token_kinds import PUNCTUATION, SEPARATORS, SINK
from headwise.lang import Text

LIFT = 2.0
"""How many times what a uniform head gives a share must be: the idea of the sieve of Pande et al.
2021, whose formula we have not; the number is ours."""


@dataclass(frozen=True)
class Criterion:
    """A name that a head has whose share is above a threshold.

    Attributes:
        name: the name.
        title: the same for a person.
        metric: which share.
        least: the threshold.
        source: whose threshold it is.
    """

    name: str
    title: Text
    metric: Metric
    least: float
    source: Text

    @property
    def words(self) -> Text:
        """The criterion as a sentence."""
        return Text(
            "{title} above {least} ({source}), {lift:g} times a uniform head's, and "
            "above every head of the random copy",
            title=self.metric.title,
            least=self.least,
            source=self.source,
            lift=LIFT,
        )


_CLARK = Text("Clark et al. 2019, their code")
_OURS = Text("most of it; ours")

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
"""Every name that rests on one share."""
