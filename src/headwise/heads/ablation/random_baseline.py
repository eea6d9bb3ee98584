"""Whether some heads matter more than as many heads drawn at random."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.heads.ablation.batches import Batch
from headwise.heads.ablation.bootstrap import Interval, bootstrap
from headwise.heads.ablation.effects import Group, How, effects
from headwise.heads.ablation.loss import Loss, next_token_loss
from headwise.heads.ablation.sites import every_head, parsed, sites
from headwise.heads.names import Head

Texts = Callable[[int], Batch | Collection[Batch]]
"""A seed to its texts."""

SEEDS = tuple(range(10))


@dataclass(frozen=True)
class Comparison:
    """What taking out some heads does, and as many at random.

    Attributes:
        heads: which ones.
        theirs: the rise of the loss without them, with its interval over seeds.
        random: the same without as many others, drawn anew for each seed.
        more: by how much the first is larger, paired by seed.
    """

    heads: tuple[Head, ...]
    theirs: Interval
    random: Interval
    more: Interval


def against_random(
    model: nn.Module,
    batch: Texts,
    heads: Group,
    loss: Loss = next_token_loss,
    *,
    seeds: Sequence[int] = SEEDS,
    how: How | None = None,
) -> Comparison:
    """Take heads out, and as many random others, on the same texts: once for each seed.

    Choose the heads on other texts than those of ``batch``; otherwise they were chosen for what is
    then shown of them.

    Args:
        model: in eval mode.
        batch: makes the texts of a seed.
        heads: such as "L0H2,L1H8".
        loss: takes the model and a batch, and returns one loss for each example.
        seeds: at least two, each for its texts and its random heads.
        how: how they are taken out; None puts them to zero.

    Raises:
        BadType, BadValue: as `headwise.heads.ablation.effect`; or if there are not as many other
            heads.

    Source: Olsson et al. 2022, argument 3 (ablation), with the control that Michel et al. 2019 and
        Budhraja et al. 2020 ask for.
    """
    return compared(model, batch, [heads], loss, seeds=seeds, how=how)[0]


def compared(
    model: nn.Module,
    batch: Texts,
    groups: Sequence[Group],
    loss: Loss = next_token_loss,
    *,
    seeds: Sequence[int] = SEEDS,
    how: How | None = None,
    others: Group | None = None,
) -> tuple[Comparison, ...]:
    """Each of several groups of heads against as many random ones, on the same texts.

    A seed draws one order of the others, of which each group is held against as many as it has: as
    the groups grow, so do the random ones.

    Args:
        model: in eval mode.
        batch: makes the texts of a seed.
        groups: each such as "L0H2,L1H8".
        loss: takes the model and a batch, and returns one loss for each example.
        seeds: at least two, each for its texts and its random heads.
        how: how they are taken out; None puts them to zero.
        others: what is drawn from; None for the heads that are in no group.

    Raises:
        BadType, BadValue: as `against_random`; or if there is no group.
    """
    if not groups:
        raise BadValue("groups: expected at least one, got none; give heads, such as ['L0H2,L1H8']")
    chosen, every = [parsed(group) for group in groups], every_head(sites(model))
    taken = {head for group in chosen for head in group}
    rest = tuple(head for head in every if head not in taken)
    pool = rest if others is None else parsed(others)
    most = max(map(len, chosen))
    if len(pool) < most:
        raise BadValue(
            "heads: {most} of {num_every} leave only {num_pool} others to draw from; choose fewer",
            most=most,
            num_every=len(every),
            num_pool=len(pool),
        )
    rises = torch.stack(
        [_rises(model, batch(seed), (chosen, _drawn(pool, seed)), loss, how) for seed in seeds], -1
    )
    return tuple(
        Comparison(group, bootstrap(theirs), bootstrap(random), bootstrap(theirs - random))
        for group, theirs, random in zip(chosen, *rises.chunk(2), strict=True)
    )


def _drawn(pool: tuple[Head, ...], seed: int) -> list[Head]:
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))
    return [pool[number] for number in order.tolist()]


def _rises(
    model: nn.Module,
    batch: Batch | Collection[Batch],
    heads: tuple[list[tuple[Head, ...]], list[Head]],
    loss: Loss,
    how: How | None,
) -> Tensor:
    """(2 · groups,): the mean rise of the loss without each group, then without random heads."""
    chosen, drawn = heads
    random = [drawn[: len(group)] for group in chosen]
    found = effects(model, batch, [*chosen, *random], loss, how)
    return torch.stack([(each.ablated - each.clean).mean() for each in found])


def repeated(
    vocabulary: Collection[int] | int,
    *,
    texts: int = 8,
    period: int = 25,
    times: int = 4,
    seed: int = 0,
) -> Tensor:
    """Random tokens that come again and again: what only earlier occurrences can predict.

    Args:
        vocabulary: the ids to draw from, or how many there are; without special tokens.
        texts: B.
        period: how many tokens there are before they come again.
        times: how often they come.
        seed: what is drawn.

    Returns:
        (B, period * times).

    Raises:
        BadValue: if there is nothing to draw or to repeat.

    Source: Olsson et al. 2022, on in-context learning: 25 random tokens, repeated 4 times.

    Example:
        >>> repeated(9, texts=1, period=3, times=2)
        tensor([[8, 0, 2, 8, 0, 2]])
    """
    ids = torch.arange(vocabulary) if isinstance(vocabulary, int) else torch.tensor([*vocabulary])
    for name, number in (("vocabulary", len(ids)), ("texts", texts), ("period", period)):
        if number < 1:
            raise BadValue("{name}: expected at least 1, got {number}", name=name, number=number)
    if times < 2:
        raise BadValue(
            "times: expected at least 2, so that something comes again, got {times}", times=times
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(ids), (texts, period), generator=generator)
    return ids[drawn].repeat(1, times)
