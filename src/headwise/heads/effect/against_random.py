"""Whether some heads matter more than as many heads drawn at random."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.heads.effect.batches import Batch
from headwise.heads.effect.interval import Interval, bootstrap
from headwise.heads.effect.loss import Loss, next_token_loss
from headwise.heads.effect.measured import Group, How, effects
from headwise.heads.effect.sites import every_head, parsed, sites
from headwise.heads.names import Head


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
    batch: Callable[[int], Batch],
    heads: Group,
    loss: Loss = next_token_loss,
    *,
    seeds: Sequence[int] = tuple(range(10)),
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
        BadType, BadValue: as `headwise.heads.effect.effect`; or if there are not as many other
            heads.

    Source: Olsson et al. 2022, argument 3 (ablation), with the control that Michel et al. 2019 and
        Budhraja et al. 2020 ask for.
    """
    chosen, every = parsed(heads), every_head(sites(model))
    others = [head for head in every if head not in chosen]
    if len(others) < len(chosen):
        raise BadValue(
            f"heads: {len(chosen)} of {len(every)} leave only {len(others)} others to draw from; "
            "choose fewer",
            f"heads：共 {len(every)} 个头，选了 {len(chosen)} 个，只剩 {len(others)} 个可抽取；"
            "请少选一些",
        )
    found = [_of_seed(model, batch, (chosen, others), loss, (seed, how)) for seed in seeds]
    theirs, random = (torch.stack(each) for each in zip(*found, strict=True))
    return Comparison(chosen, bootstrap(theirs), bootstrap(random), bootstrap(theirs - random))


def _of_seed(
    model: nn.Module,
    batch: Callable[[int], Batch],
    heads: tuple[tuple[Head, ...], list[Head]],
    loss: Loss,
    run: tuple[int, How | None],
) -> tuple[Tensor, Tensor]:
    """The mean rise of the loss without the chosen heads, and without random ones."""
    (chosen, others), (seed, how) = heads, run
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))
    drawn = [others[number] for number in order[: len(chosen)].tolist()]
    theirs, random = effects(model, batch(seed), [chosen, drawn], loss, how)
    return (theirs.ablated - theirs.clean).mean(), (random.ablated - random.clean).mean()


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
            raise BadValue(
                f"{name}: expected at least 1, got {number}",
                f"{name}：至少应为 1，收到 {number}",
            )
    if times < 2:
        raise BadValue(
            f"times: expected at least 2, so that something comes again, got {times}",
            f"times：至少应为 2，才会有重复，收到 {times}",
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(ids), (texts, period), generator=generator)
    return ids[drawn].repeat(1, times)
