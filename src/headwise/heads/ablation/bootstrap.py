"""Bootstrap confidence interval of a mean over examples."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadValue

RESAMPLES = 2000
CONFIDENCE = 0.95
CHUNK = 1 << 22


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval.

    Attributes:
        mean: the mean of the values.
        low: the lower end.
        high: the upper end.
        confidence: the nominal coverage.
        examples: the number of values.
    """

    mean: float
    low: float
    high: float
    confidence: float
    examples: int


def bootstrap(
    values: Tensor, *, seed: int = 0, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> Interval:
    """The mean of values with its percentile bootstrap interval.

    For a paired interval, give the differences of the pairs.

    Args:
        values: (N,), one for each example or each seed, N at least 2.
        seed: the seed of the resampling.
        resamples: the number of resamples.
        confidence: the nominal coverage, between 0 and 1.

    Raises:
        BadValue: if there are fewer than two values, or one is not finite.

    Source: Efron & Tibshirani 1993, chapter 13. Too narrow for few values.

    Example:
        >>> bootstrap(torch.tensor([1.0, 1.0, 1.0])).low
        1.0
    """
    wide = values.detach().double().flatten().cpu()
    count = len(wide)
    if count < 2:
        raise BadValue(
            "values: expected at least 2 examples for an interval, got {count}; give "
            "more texts or seeds",
            count=count,
        )
    if not wide.isfinite().all():
        raise BadValue(
            "values: expected finite losses, got NaN or infinity; look at the model's outputs"
        )
    generator = torch.Generator().manual_seed(seed)
    means = list[Tensor]()
    step = max(1, CHUNK // count)
    for start in range(0, resamples, step):
        size = (min(step, resamples - start), count)
        means.append(wide[torch.randint(count, size, generator=generator)].mean(1))
    tails = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
    low, high = torch.quantile(torch.cat(means), tails).tolist()
    return Interval(wide.mean().item(), low, high, confidence, count)
