"""Measure the loss as more heads are ablated, and compare with equally many random heads."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.errors import BadValue, one_of
from headwise.heads.ablation.ablate import ablate
from headwise.heads.ablation.loss import Batch, Loss, in_evaluation, next_token_loss, several
from headwise.heads.ablation.loss_effects import (
    Group,
    How,
    Interval,
    bootstrap,
    effects,
    importance,
    losses,
)
from headwise.heads.ablation.sites import check_exist, every_head, parsed, sites
from headwise.heads.names import Head

Texts = Callable[[int], Batch | Collection[Batch]]  # maps a seed to its texts
SEEDS = tuple(range(10))


@dataclass(frozen=True)
class Comparison:
    """The effect of ablating some heads, and of ablating equally many random heads.

    Attributes:
        heads: the selected heads.
        theirs: the loss increase without the selected heads, with its interval over seeds.
        random: the loss increase without equally many other heads, sampled for each seed.
        more: ``theirs - random``, paired by seed.
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
    """Ablate heads and, on the same texts, equally many random other heads, once for each seed.

    Select the heads on different texts from those of ``batch``; otherwise the result is biased.

    The arguments are those of `headwise.heads.ablation.effect`, except that ``batch`` is a function
    from a seed to its texts. Each of the ``seeds``, at least two, also samples its random heads.

    Raises:
        BadType, BadValue: as `headwise.heads.ablation.effect`; or if the model has too few other
            heads.

    Source: Olsson et al. 2022, argument 3 (ablation), with the control of Michel et al. 2019 and
        Budhraja et al. 2020.
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
    """Compare each group of heads with equally many random heads on the same texts.

    Each seed shuffles the other heads once; a group of n heads is compared with the first n.

    ``others`` are the heads to sample from, by default all heads outside the groups. The remaining
    arguments are those of `against_random`.

    Raises:
        BadType, BadValue: as `against_random`; or if ``groups`` is empty.
    """
    if not groups:
        raise BadValue("groups: expected at least one group, got none; pass, e.g., ['L0H2,L1H8']")
    selected, every = [parsed(group) for group in groups], every_head(sites(model))
    in_groups = {head for group in selected for head in group}
    rest = tuple(head for head in every if head not in in_groups)
    pool = rest if others is None else parsed(others)
    most = max(map(len, selected))
    if len(pool) < most:
        raise BadValue(
            "heads: need {most} other heads to sample, got {num_pool} of {num_every}; choose fewer",
            most=most,
            num_every=len(every),
            num_pool=len(pool),
        )
    by_seed = []
    for seed in seeds:
        order = _shuffled(pool, seed)
        random_groups = [order[: len(group)] for group in selected]
        results = effects(model, batch(seed), [*selected, *random_groups], loss, how)
        by_seed.append(torch.stack([(r.ablated - r.clean).mean() for r in results]))
    rises = torch.stack(by_seed, -1)  # (2 · groups, seeds)
    return tuple(
        Comparison(group, bootstrap(theirs), bootstrap(random), bootstrap(theirs - random))
        for group, theirs, random in zip(selected, *rises.chunk(2), strict=True)
    )


def repeated(
    vocabulary: Collection[int] | int,
    *,
    texts: int = 8,
    period: int = 25,
    times: int = 4,
    seed: int = 0,
) -> Tensor:
    """Return repeated random tokens (B, period · times), predictable only from their repetition.

    Args:
        vocabulary: the token ids to sample from, or their number; without special tokens.
        texts: the number of texts, B.
        period: the length of the repeated sequence.
        times: the number of times that the sequence occurs.
        seed: the seed of the sampling.

    Raises:
        BadValue: if ``vocabulary``, ``texts``, ``period`` or ``times`` is too small.

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
            "times: expected at least 2 occurrences of the sequence, got {times}", times=times
        )
    generator = torch.Generator().manual_seed(seed)
    sampled = torch.randint(len(ids), (texts, period), generator=generator)
    return ids[sampled].repeat(1, times)


STEP = 0.1  # the fraction of heads ablated per step: Michel et al. 2019, section 4.2
ORDERS = ("importance", "random", "given")  # least important first, random, or argument order


@dataclass(frozen=True)
class Point:
    """One point of the curve.

    Attributes:
        removed: the heads ablated so far.
        share: the fraction of all heads that is ablated.
        loss: the mean loss over the corpus, with its interval over examples.
        rise: the loss minus the loss of the intact model, with its paired interval over examples.
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
    """Measure the loss with 0 %, 10 %, 20 % … of the heads ablated, by default by importance.

    In order of importance, the least important heads are ablated first, and the importance of the
    remaining heads is measured again at each step.

    Args:
        model: a model in eval mode.
        batches: the corpus.
        loss: a function of the model and a batch that returns one loss for each example.
        order: "importance" for the least important first, "given" for the order of ``heads``, or
            "random" as a baseline: Budhraja et al. 2020 prune random heads about as well, if the
            model is trained further.
        heads: the heads to ablate, such as "L0H2,L1H8"; None for every head, layer by layer.
        step: the fraction of ``heads`` ablated at each step.
        until: the fraction of ``heads`` at which to stop.
        how: the ablation method, and the seed of a random order.

    Raises:
        BadType, BadValue: as `effect`; or if ``step`` or ``until`` is not in (0, 1], or a head does
            not exist.

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
                "{name}: expected a fraction above 0 and at most 1, got {share}; 0.1 is a "
                "tenth of the heads",
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
    points, removed = list[Point](), list[Head]()

    def add_point(ablated: Tensor) -> None:
        interval, rise = (bootstrap(v, seed=how.seed) for v in (ablated, ablated - intact))
        points.append(Point(tuple(removed), len(removed) / total, interval, rise))

    add_point(intact)
    for number in _numbers(len(candidates), step, until):
        if order == "importance":
            ordered = _least_important_first(model, corpus, removed, loss, how)
        remaining = [head for head in ordered if head in candidates and head not in removed]
        removed += remaining[: number - len(removed)]
        with ablate(model, removed, how.kind, reference=how.reference, seed=how.seed):
            add_point(losses(model, corpus, loss))
    return tuple(points)


def _numbers(total: int, step: float, until: float) -> list[int]:
    """Return the number of heads ablated after each step; each step ablates at least one head.

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


def _least_important_first(
    model: nn.Module, corpus: list[Batch], removed: list[Head], loss: Loss, how: How
) -> tuple[Head, ...]:
    """Rank every head by its importance while the ``removed`` heads are ablated."""
    if not removed:
        return importance(model, corpus, loss).ranking()
    with ablate(model, removed, how.kind, reference=how.reference, seed=how.seed):
        return importance(model, corpus, loss).ranking()
