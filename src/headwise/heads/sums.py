"""Sums over texts that can be merged, and p-values and confidence intervals from them."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import NormalDist
from typing import Any, Self

import torch
from torch import Tensor

from headwise.errors import BadFile, BadValue

MOST_NAMES, MOST_NUMBERS = 1 << 16, 1 << 24  # the most sums in a file, the most numbers of a sum
_FORM = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}")


@dataclass
class Accumulator:
    """Named sums, each a float64 tensor; `merge` adds the sums of another accumulator.

    Example:
        >>> one = Accumulator()
        >>> one.add("hits", torch.tensor([1.0, 2.0]))
        >>> one.merge(one)
        >>> one["hits"]
        tensor([2., 4.], dtype=torch.float64)
    """

    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, more: Tensor) -> None:
        """Add to a sum; raise `BadValue` if the shape differs."""
        more = more.detach().to("cpu", torch.float64)
        before = self.sums.get(name)
        if before is not None and before.shape != more.shape:
            raise BadValue(
                "sums: expected shape {before_shape} for {name}, got {more_shape}; use "
                "one accumulator for each model",
                name=name,
                before_shape=tuple(before.shape),
                more_shape=tuple(more.shape),
            )
        self.sums[name] = more.clone() if before is None else before + more

    def merge(self, other: "Accumulator") -> None:
        """Add every sum of another accumulator, which is not changed."""
        for name, more in other.sums.items():
            self.add(name, more)

    def __getitem__(self, name: str) -> Tensor:
        return self.sums[name]

    def __contains__(self, name: str) -> bool:
        return name in self.sums

    def __iter__(self) -> Iterator[str]:
        return iter(self.sums)

    def tensors(self) -> dict[str, Tensor]:
        """Return every sum by name."""
        return dict(self.sums)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Accumulator":
        """Return the accumulator that `tensors` wrote; raise `BadFile` for other tensors."""
        if len(tensors) > MOST_NAMES:
            raise _unfit(f"{len(tensors)} names")
        for name, tensor in tensors.items():
            if not _FORM.fullmatch(name):
                raise _unfit(repr(name[:80]))
            good = tensor.dtype == torch.float64 and tensor.numel() <= MOST_NUMBERS
            if not good or not bool(tensor.isfinite().all()):
                raise _unfit(f"{name} {tuple(tensor.shape)} {tensor.dtype}")
        return cls({name: tensor.clone() for name, tensor in tensors.items()})


def _unfit(what: str) -> BadFile:
    return BadFile(
        "sums: expected finite float64 sums from tensors(), got {what}; measure again", what=what
    )


@dataclass
class TextSums:
    """The base class of measures that are computed from ``sums`` over texts."""

    sums: Accumulator = field(default_factory=Accumulator)

    def merge(self, other: Self) -> None:
        """Add the sums over other texts."""
        self.sums.merge(other.sums)

    def tensors(self) -> dict[str, Tensor]:
        """Return all sums by name; sums over different texts can be added."""
        return self.sums.tensors()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Invert `tensors`; errors as `Accumulator.from_tensors`."""
        return cls(Accumulator.from_tensors(tensors))


@dataclass
class SumsByPart:
    """The base class of dataclasses whose fields have `merge`, `tensors` and `from_tensors`."""

    def merge(self, other: Self) -> None:
        """Add the sums over other texts."""
        for part in fields(self):
            getattr(self, part.name).merge(getattr(other, part.name))

    def tensors(self) -> dict[str, Tensor]:
        """Return all sums by name; sums over different texts can be added."""
        parts = {part.name: getattr(self, part.name).tensors() for part in fields(self)}
        return {f"{part}/{name}": own[name] for part, own in parts.items() for name in own}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Invert `tensors`; raise `BadFile` if names, shapes or values are invalid."""
        kinds: dict[str, Any] = {part.name: part.type for part in fields(cls)}
        parts = cls._split(tensors)
        return cls(**{name: kinds[name].from_tensors(own) for name, own in parts.items()})

    @classmethod
    def _split(cls, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of each part by their names without the prefix."""
        parts: dict[str, dict[str, Tensor]] = {part.name: {} for part in fields(cls)}
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            if part not in parts:
                raise cls._unknown(name[:80])
            parts[part][rest] = tensor
        return parts

    @staticmethod
    def _unknown(name: str) -> BadFile:
        return BadFile("expected the name of a sum of a corpus run, got {name!a}", name=name)


SUMS = ("texts", "x", "y", "xx", "xy", "yy")  # the last axis of the tensors of `ratio_sums`


def ratio_sums(x: Tensor, y: Tensor) -> Tensor:
    """Return the sums of one text for a ratio of x and y, (..., 6) in float64; 0 where y = 0.

    Example:
        >>> one = ratio_sums(torch.tensor([1.0]), torch.tensor([4.0]))
        >>> (one + ratio_sums(torch.tensor([3.0]), torch.tensor([4.0]))).tolist()
        [[2.0, 4.0, 8.0, 10.0, 16.0, 32.0]]
    """
    counts = (y > 0) & torch.ones_like(x, dtype=torch.bool)
    x, y = torch.where(counts, x.double(), 0.0), torch.where(counts, y.double(), 0.0)
    return torch.stack((counts.double(), x, y, x * x, x * y, y * y), -1)


@dataclass(frozen=True)
class RatioEstimate:
    """A ratio Σx / Σy over texts, with the sums that its standard error needs.

    Example:
        >>> each = [ratio_sums(torch.tensor(x), torch.tensor(10.0)) for x in (6.0, 8.0, 7.0)]
        >>> share = RatioEstimate.of(sum(each))
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
    def of(cls, sums: Tensor) -> "RatioEstimate":
        """Return the ratio from the sums (6,) of `ratio_sums`."""
        texts, *others = sums.tolist()
        return cls(int(texts), *others)

    @property
    def value(self) -> float:
        """The ratio Σx / Σy; NaN if Σy is 0."""
        return self.x / self.y if self.y else math.nan

    @property
    def rest(self) -> "RatioEstimate":
        """The ratio Σ(y - x) / Σy."""
        xx = self.yy - 2 * self.xy + self.xx
        return RatioEstimate(self.texts, self.y - self.x, self.y, xx, self.yy - self.xy, self.yy)

    def tail(self, least: float) -> float:
        """Return the one-sided p-value of the hypothesis that the ratio is at most ``least``."""
        squares = self.xx - 2 * least * self.xy + least * least * self.yy
        return tail(self.texts, self.x - least * self.y, squares)


def tail(texts: int, total: float, squares: float) -> float:
    """Return the p-value of the hypothesis that the expected contribution of a text is at most 0.

    The test is Student's t-test. The p-value is at least the smallest p-value of a sign test, so
    a few texts that agree by chance are not significant.

    Args:
        texts: the number of texts.
        total: the sum of the contributions of the texts.
        squares: the sum of the squared contributions of the texts.
    """
    if texts < 2:
        return 1.0
    mean = total / texts
    variance = max(0.0, squares - texts * mean * mean) / (texts - 1)
    if not variance:
        return 0.5**texts if mean > 0 else 1.0
    return max(0.5**texts, t_tail(mean / math.sqrt(variance / texts), texts - 1))


MANY = 10_000  # with more degrees of freedom, the normal distribution replaces Student's t


def wilson(hits: float, count: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson interval of ``hits`` / ``count``; (NaN, NaN) if ``count`` is 0.

    Source: Wilson 1927; Newcombe 1998, method 3.

    Example:
        >>> low, high = wilson(81, 263)
        >>> f"{low:.4f} {high:.4f}"
        '0.2553 0.3662'
    """
    if not count:
        return math.nan, math.nan
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, square = hits / count, z * z
    middle = share + square / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    return (middle - half) / (1 + square / count), (middle + half) / (1 + square / count)


def t_tail(t: float, freedom: int) -> float:
    """Return the probability that Student's t with ``freedom`` degrees of freedom exceeds ``t``.

    Source: Abramowitz & Stegun 1964, 26.7.3 and 26.7.4.

    Example:
        >>> f"{t_tail(2.228, 10):.4f} {t_tail(1.0, 1):.4f} {t_tail(-1.0, 1):.4f}"
        '0.0250 0.2500 0.7500'
    """
    if math.isnan(t) or freedom < 1:
        return 1.0
    if freedom > MANY or math.isinf(t):
        return math.erfc(t / math.sqrt(2)) / 2
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    term = math.cos(angle) if freedom % 2 else 1.0
    total = 0.0
    for step in range(freedom % 2, freedom - 1, 2):
        total += term
        term *= square * (step + 1) / (step + 2)
    inside = (angle + sine * total) * 2 / math.pi if freedom % 2 else sine * total
    tail = max(0.0, (1 - inside) / 2)
    return tail if t >= 0 else 1 - tail


def t_quantile(chance: float, freedom: int) -> float:
    """Return the t that Student's t exceeds with probability ``chance``, which is below 1/2.

    Example:
        >>> f"{t_quantile(0.025, 10):.3f}"
        '2.228'
    """
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > chance and high < FURTHEST:
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > chance else (low, middle)
    return high


FURTHEST, STEPS = 2.0**40, 100  # the largest t, and the number of bisection steps


def holm(tails: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of tests, which bound the family-wise error rate.

    Source: Holm 1979; adjusted values are those of Wright 1992.

    Example:
        >>> [f"{adjusted:.2f}" for adjusted in holm([0.01, 0.04, 0.03])]
        ['0.03', '0.06', '0.06']
    """
    order = sorted(range(len(tails)), key=lambda n: tails[n])
    adjusted, largest = [1.0] * len(tails), 0.0
    for place, number in enumerate(order):
        largest = max(largest, min(1.0, (len(tails) - place) * tails[number]))
        adjusted[number] = largest
    return adjusted
