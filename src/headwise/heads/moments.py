"""A share over many texts, with its spread from text to text, as sums that add up.

A text gives x of y: attention on a kind of key of all attention, words found of words asked for.
The share is Σx / Σy over all texts; a text is what is drawn by chance, so the spread of x - t y
from text to text says how sure it is that the share is above t.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.heads.intervals import above

SUMS = ("texts", "x", "y", "xx", "xy", "yy")
"""The last axis of a tensor of moments."""


def moments(x: Tensor, y: Tensor) -> Tensor:
    """The sums of one text, (..., 6) in float64; a text with y = 0 counts for nothing.

    Example:
        >>> one = moments(torch.tensor([1.0]), torch.tensor([4.0]))
        >>> (one + moments(torch.tensor([3.0]), torch.tensor([4.0]))).tolist()
        [[2.0, 4.0, 8.0, 10.0, 16.0, 32.0]]
    """
    counts = (y > 0) & torch.ones_like(x, dtype=torch.bool)
    x, y = torch.where(counts, x.double(), 0.0), torch.where(counts, y.double(), 0.0)
    return torch.stack((counts.double(), x, y, x * x, x * y, y * y), -1)


@dataclass(frozen=True)
class Share:
    """One share with what its spread is computed from.

    Example:
        >>> each = [moments(torch.tensor(x), torch.tensor(10.0)) for x in (6.0, 8.0, 7.0)]
        >>> share = Share.of(sum(each))
        >>> share.value
        0.7
        >>> share.tail(0.5) < 0.13
        True
    """

    texts: int
    x: float
    y: float
    xx: float
    xy: float
    yy: float

    @classmethod
    def of(cls, sums: Tensor) -> "Share":
        """The share whose moments, (6,), these are."""
        texts, *rest = sums.tolist()
        return cls(int(texts), *rest)

    @property
    def value(self) -> float:
        """Σx / Σy; NaN where no text shows it."""
        return self.x / self.y if self.y else math.nan

    @property
    def rest(self) -> "Share":
        """What is left of the whole: the share of y - x."""
        xx = self.yy - 2 * self.xy + self.xx
        return Share(self.texts, self.y - self.x, self.y, xx, self.yy - self.xy, self.yy)

    def tail(self, least: float) -> float:
        """How likely so large a share is if the true one is ``least`` or less: one-sided."""
        squares = self.xx - 2 * least * self.xy + least * least * self.yy
        return tail(self.texts, self.x - least * self.y, squares)


def tail(texts: int, total: float, squares: float) -> float:
    """How likely so large a total is by chance if its expectation is 0 or less.

    Student's test on the texts' contributions; never smaller than the sign test of so many texts
    could be, so that few texts that agree by chance prove nothing.

    Args:
        texts: how many contributed.
        total: the sum of their contributions.
        squares: the sum of their squares.
    """
    if texts < 2:
        return 1.0
    mean = total / texts
    variance = max(0.0, squares - texts * mean * mean) / (texts - 1)
    if not variance:
        return 0.5**texts if mean > 0 else 1.0
    return max(0.5**texts, above(mean / math.sqrt(variance / texts), texts - 1))
