"""Plain runs that round otherwise, for what one plain run leaves to luck.

The rule holds the largest error of a result against that of a plain run. Where few numbers are
compared, or one row has nearly all the error, that is one rounding beside one other, of which the
first is by chance more than twice the second in one comparison of some hundreds; on a processor
that adds in another order it is another one. So a result that is rejected may be held against
more plain runs, of inputs that differ from the given ones by less than their own rounding: what is
wrong is rejected beside every one of them.
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
