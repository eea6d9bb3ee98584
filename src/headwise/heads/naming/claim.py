"""One claim about one head: what the first half of a corpus suggests, and the second one tests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from headwise.heads.names import Head
from headwise.heads.statistics.inference import t_quantile
from headwise.lang import Text


@dataclass(frozen=True)
class Trial:
    """A name that was tried on a head.

    Attributes:
        head: which.
        name: the name.
        title: the name for a person.
        criterion: what must hold.
        found: the value in the first half, which suggested the name.
        value: the value in the second half, which nothing was chosen on.
        bar: what the value must be beyond.
        uniform: what a head gives that attends to every key alike; NaN where that has no meaning.
        random: the largest value among the heads of the random copy; NaN where unknown.
        rule: the best fixed offset's accuracy; NaN where that has no meaning.
        texts: how many texts of the second half show it.
        chance: how likely the second half is if the name is wrong; 1 where the first half did not
            suggest it. Once corrected for all that was tried, the chance of any wrong name.
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
        """The same with another chance."""
        return replace(self, chance=chance)


@dataclass(frozen=True)
class Spread:
    """What the heads of the random copy give: the range that one more of them would lie in.

    Attributes:
        low, high: beyond them a further head lies with a stated chance, if heads are normally
            distributed; and no head of the copy lies there.
        largest: the largest value of all.
    """

    low: float
    high: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float], chance: float) -> "Spread":
        """The prediction interval of one further value; without any value nothing is ruled out.

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
