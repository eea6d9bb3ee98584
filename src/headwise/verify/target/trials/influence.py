"""Which tokens influence which outputs of a target, and what masks that agrees with."""

from collections.abc import Callable

import torch
from torch import Tensor

from headwise.masks import Mask, window
from headwise.verify.checks import LENGTH
from headwise.verify.oracle.jobs import Job, Outcome
from headwise.verify.oracle.tolerance import SLACK

Run = Callable[[Job], Outcome]

ORDER = (2, 0, 5, 6, 1, 3, 4)  # an order in which no token keeps its place


def influences(run: Run, job: Job) -> Tensor:
    """(B, L, L): whether another token j changes output i of its sample; the diagonal is False."""
    before = run(job).output.detach()
    determined = ~before.isnan().any(-1)[..., None]  # a row that is NaN shows nothing
    rounding = _rounding(before)
    columns = []
    for j in range(LENGTH):
        x = job.query.clone()
        x[:, j] = 1.0 - 2.0 * x[:, j]
        after = run(job.with_input(x)).output.detach()
        columns.append(~((after - before).abs().amax(-1) <= rounding))  # a NaN is a change
    return torch.stack(columns, -1) & determined & ~torch.eye(LENGTH, dtype=torch.bool)


def equal_influence(influence: Tensor, mask: Mask, job: Job) -> bool:
    """Whether exactly the other tokens that a mask allows have an influence."""
    others = ~torch.eye(LENGTH, dtype=torch.bool)
    allowed = mask.dense(job.shape)[:, 0].expand(job.shape.batch, -1, -1)
    return bool((influence == allowed & others).all())


def windows(seen: Tensor, job: Job) -> tuple[Mask, ...]:
    """The windows that agree with the influences."""
    pairs = ((left, right) for left in range(LENGTH - 1) for right in range(LENGTH - 1))
    masks = (window(left, right) for left, right in pairs if left + right)
    return tuple(mask for mask in masks if equal_influence(seen, mask, job))


def equivariant(run: Run, job: Job) -> bool:
    """Whether permuted tokens give permuted outputs: no position, no mask, no window."""
    order = list(ORDER)
    before = run(job).output.detach()[:, order]
    after = run(job.with_input(job.query[:, order])).output.detach()
    return bool(((after - before).abs() <= 16 * _rounding(before)).all())


def _rounding(output: Tensor) -> Tensor:
    return SLACK[output.dtype] * output.abs().nan_to_num(0.0).max()
