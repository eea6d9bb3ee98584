"""Repeated plain runs with different rounding, for results that one plain run rejects by chance.

The acceptance rule compares the largest error of a result with that of a plain run. If few numbers
are compared, or if one row has nearly all the error, both are single rounding errors. By chance,
the first is then more than twice the second in one of some hundreds of comparisons, and on another
processor in a different comparison. A rejected result may therefore be compared with more plain
runs, whose inputs differ by less than their rounding. A wrong result is rejected by all of them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headwise.verify.oracle.tolerance import accept, judge

RUNS = 64
"""How many more plain runs there are at most: of 220 draws with cosine scores 8 were rejected
beside one run, 1 beside 8 and none beside 16."""


def nudged(x: Tensor, run: int) -> Tensor:
    """x, of which about every third number is one rounding away; a leaf, if x wants gradients."""
    generator = torch.Generator().manual_seed(run)
    spread = 2 * torch.rand(x.shape, dtype=torch.float64, generator=generator) - 1
    wide = x.detach().double()
    apart = wide * spread * torch.finfo(x.dtype).eps / 2
    return (wide + apart).to(x.dtype).requires_grad_(x.requires_grad)


def hold(
    found: Sequence[Tensor],
    near: Sequence[Tensor],
    exact: Sequence[Tensor],
    again: Callable[[int], Sequence[Tensor]],
) -> None:
    """Assert that each result is accepted beside its plain run or beside one of some others.

    Args:
        found: the results.
        near: what a plain run gave for each.
        exact: what the oracle gave for each.
        again: what the plain run of this number gave, of inputs that it has nudged.
    """
    rejected = _rejected(range(len(found)), found, near, exact)
    for run in range(RUNS):
        if not rejected:
            return
        rejected = _rejected(rejected, found, again(run), exact)
    for each in rejected:
        accept(found[each], near[each], exact[each])


def _rejected(
    numbers: Sequence[int], found: Sequence[Tensor], near: Sequence[Tensor], exact: Sequence[Tensor]
) -> list[int]:
    return [n for n in numbers if not judge(found[n], near[n], exact[n]).accepted]
