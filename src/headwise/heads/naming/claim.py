"""A claim about a head: suggested by the first half of a corpus, tested on the second."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from headwise.heads.names import Head
from headwise.heads.statistics.sums import t_quantile
from headwise.lang import Text


@dataclass(frozen=True)
class Trial:
    """A candidate name of a head, with its test.

    Attributes:
        head: the head.
        name: the name.
        title: the name in the reader's language.
        criterion: the condition of the name.
        found: the value in the first half, which suggested the name.
        value: the value in the second half, an unbiased estimate.
        bar: the threshold of the value.
        uniform: the value of a head that attends to all keys equally; NaN if undefined.
        random: the largest value of the heads of the random copy; NaN if unknown.
        rule: the accuracy of the best fixed offset; NaN if undefined.
        texts: the number of texts of the second half with the value.
        chance: the p-value on the second half, 1 if the first half did not suggest the name; after
            `corrected`, the p-value adjusted for all candidates.
    """

    head: Head
    name: str
    title: Text
    criterion: Text
    found: float
    value: float
    bar: float
    uniform: float
    random: float
    rule: float
    texts: int
    chance: float

    @property
    def confidence(self) -> float:
        """1 - chance."""
        return 1 - self.chance

    def corrected(self, chance: float) -> "Trial":
        """The claim with another p-value."""
        return replace(self, chance=chance)


@dataclass(frozen=True)
class Spread:
    """Prediction interval of one further head of the random copy.

    Attributes:
        low, high: the interval, for normally distributed values, extended to all heads of the copy.
        largest: the largest value.
    """

    low: float
    high: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float], chance: float) -> "Spread":
        """The prediction interval of one further value; unbounded below without values.

        Example:
            >>> Spread.of([0.1, 0.2, 0.3], 0.1).high > 0.3
            True
        """
        known = [value for value in values if not math.isnan(value)]
        if not known:
            return cls(-math.inf, -math.inf, math.nan)
        if len(known) < 2:
            return cls(known[0], known[0], known[0])
        reach = t_quantile(chance / 2, len(known) - 1) * stdev(known)
        reach *= math.sqrt(1 + 1 / len(known))
        middle = mean(known)
        return cls(min(*known, middle - reach), max(*known, middle + reach), max(known))
