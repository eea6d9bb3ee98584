"""How sure a number is: intervals of shares, tails of Student's t, many tests at once."""

import math
from collections.abc import Sequence
from statistics import NormalDist

MANY = 10_000
"""Degrees of freedom from which Student's distribution is the normal one."""


def wilson(hits: float, count: float, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of a share of which ``hits`` of ``count`` were seen; (NaN, NaN) of none.

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


def above(t: float, freedom: int) -> float:
    """The probability that Student's t with so many degrees of freedom is larger than ``t``.

    Source: Abramowitz & Stegun 1964, 26.7.3 and 26.7.4.

    Example:
        >>> f"{above(2.228, 10):.4f} {above(1.0, 1):.4f} {above(-1.0, 1):.4f}"
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


def exceeded(chance: float, freedom: int) -> float:
    """The t that Student's distribution is larger than with this probability, below a half.

    Example:
        >>> f"{exceeded(0.025, 10):.3f}"
        '2.228'
    """
    low, high = 0.0, 1.0
    while above(high, freedom) > chance and high < FURTHEST:
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle, freedom) > chance else (low, middle)
    return high


FURTHEST, STEPS = 2.0**40, 100
"""Where the search for a t ends, and how many times it is halved."""


def holm(tails: Sequence[float]) -> list[float]:
    """Each probability as if its test were the only one: the chance of any wrong name is bounded.

    Source: Holm 1979; adjusted values are those of Wright 1992.

    Example:
        >>> [f"{each:.2f}" for each in holm([0.01, 0.04, 0.03])]
        ['0.03', '0.06', '0.06']
    """
    order = sorted(range(len(tails)), key=lambda n: tails[n])
    found, largest = [1.0] * len(tails), 0.0
    for place, number in enumerate(order):
        largest = max(largest, min(1.0, (len(tails) - place) * tails[number]))
        found[number] = largest
    return found
