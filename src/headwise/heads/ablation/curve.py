"""The loss as more and more heads are ablated."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.errors import BadValue, one_of
from headwise.heads.ablation.ablate import ablate
from headwise.heads.ablation.importance import importance
from headwise.heads.ablation.loss import Batch, Loss, in_evaluation, next_token_loss, several
from headwise.heads.ablation.loss_effects import Group, How, Interval, bootstrap, losses
from headwise.heads.ablation.sites import check_exist, every_head, parsed, sites
from headwise.heads.names import Head

STEP = 0.1
"""The share of heads ablated per step: Michel et al. 2019, section 4.2."""

ORDERS = ("importance", "random", "given")
"""Least important first, random order, or the order given."""


@dataclass(frozen=True)
class Point:
    """One point of the curve.

    Attributes:
        removed: the heads ablated so far.
        share: their number divided by that of all heads.
        loss: the mean loss over the corpus, with its interval over examples.
        rise: the loss minus that of the intact model, with its paired interval over examples.
    """

    removed: tuple[Head, ...]
    share: float
    loss: Interval
    rise: Interval | None = None


def curve(
    model: nn.Module,
    batches: Batch | Collection[Batch],
    loss: Loss = next_token_loss,
    *,
    order: str = ORDERS[0],
    heads: Group | None = None,
    step: float = STEP,
    until: float = 1.0,
    how: How | None = None,
) -> tuple[Point, ...]:
    """The loss with 0 %, 10 %, 20 % … of the heads ablated, by default the least important first.

    The importance of the remaining heads is measured anew at each step.

    Args:
        model: in eval mode.
        batches: the corpus.
        loss: takes the model and a batch, and returns one loss for each example.
        order: "importance", "given", or "random" for a baseline: Budhraja et al. 2020 found random
            heads about as good to remove, if the rest is trained further.
        heads: the heads to ablate, such as "L0H2,L1H8"; None for every head, layer by layer.
        step: the share of them ablated at each step.
        until: the share at which to stop.
        how: the method, and the seed of a random order.

    Raises:
        BadType, BadValue: as `effect`; or if a share is not between 0 and 1, or a head does not
            exist.

    Source: Michel et al. 2019, section 4.2.

    Example:
        >>> import headwise as hw
        >>> layer = hw.MultiheadAttention(8, 2, batch_first=True).eval()
        >>> size = lambda model, x: model(x, x, x)[0].square().mean((1, 2))
        >>> [point.share for point in curve(layer, torch.randn(5, 3, 8), size)]
        [0.0, 0.5, 1.0]
    """
    in_evaluation(model)
    if order not in ORDERS:
        raise one_of("order", order, ORDERS)
    for name, share in (("step", step), ("until", until)):
        if not 0 < share <= 1:
            raise BadValue(
                "{name}: expected a share above 0 and at most 1, got {share}; 0.1 is a "
                "tenth of all heads",
                name=name,
                share=share,
            )
    corpus, how = several(batches, "batches"), how or How()
    attentions = sites(model)
    total = len(every_head(attentions))
    candidates = every_head(attentions) if heads is None else parsed(heads)
    check_exist(candidates, attentions)
    ordered = _shuffled(candidates, how.seed) if order == "random" else candidates
    intact = losses(model, corpus, loss)
    points, removed = [_point((), 0.0, intact, intact, how.seed)], list[Head]()
    for number in _numbers(len(candidates), step, until):
        if order == "importance":
            ordered = _least(model, corpus, tuple(removed), loss, how)
        remaining = [head for head in ordered if head in candidates and head not in removed]
        removed += remaining[: number - len(removed)]
        with ablate(model, removed, how.kind, reference=how.reference, seed=how.seed):
            ablated = losses(model, corpus, loss)
        points.append(_point(tuple(removed), len(removed) / total, ablated, intact, how.seed))
    return tuple(points)


def _numbers(total: int, step: float, until: float) -> list[int]:
    """The number of heads ablated after each step; each step ablates at least one.

    Example:
        >>> _numbers(12, 0.25, 1.0), _numbers(3, 0.1, 0.7)
        ([3, 6, 9, 12], [1, 2])
    """
    last = int(total * until + 1e-9)
    steps = [round(total * step * n) for n in range(1, int(1 / step + 1e-9) + 2)]
    return sorted({min(number, last) for number in steps if number > 0} | {last} - {0})


def _shuffled(heads: tuple[Head, ...], seed: int) -> tuple[Head, ...]:
    order = torch.randperm(len(heads), generator=torch.Generator().manual_seed(seed))
    return tuple(heads[number] for number in order.tolist())


def _least(
    model: nn.Module, corpus: list[Batch], gone: tuple[Head, ...], loss: Loss, how: How
) -> tuple[Head, ...]:
    """Every head, the least important first, with some heads ablated."""
    if not gone:
        return importance(model, corpus, loss).ranking()
    with ablate(model, gone, how.kind, reference=how.reference, seed=how.seed):
        return importance(model, corpus, loss).ranking()


def _point(
    removed: tuple[Head, ...], share: float, ablated: Tensor, intact: Tensor, seed: int
) -> Point:
    rise = bootstrap(ablated - intact, seed=seed)
    return Point(removed, share, bootstrap(ablated, seed=seed), rise)
