"""The experiment: heads go one after the other, and the loss is measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from headwise.cli.ablate.reading import Reading
from headwise.errors import BadValue
from headwise.heads.effect.against_random import Comparison, compared
from headwise.heads.effect.batches import Batch
from headwise.heads.effect.curve import Point, curve
from headwise.heads.effect.kinds import Kind, kind_named
from headwise.heads.effect.loss import Loss, next_token_loss
from headwise.heads.effect.measured import How
from headwise.heads.effect.sites import every_head, sites
from headwise.heads.models.load import Loaded
from headwise.heads.names import Head

Progress = Callable[[int, int], None]
"""Told how many texts of how many have been read."""


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        heads: which go, in the order asked for.
        how: by which experiment.
        order: "given", or "importance": the least important first.
        steps: in how many steps.
        draws: how many seeds the heads are held against random ones with; 0 for none.
        seed: the first of them, and that of everything else that is drawn.
        same: whether a run named the heads on the texts that the loss is measured on.
    """

    heads: tuple[Head, ...]
    how: str
    order: str
    steps: int
    draws: int = 0
    seed: int = 0
    same: bool = False

    @property
    def kind(self) -> Kind:
        """The experiment."""
        return kind_named(self.how)

    @property
    def seeds(self) -> range:
        """The seeds of random heads."""
        return range(self.seed, self.seed + self.draws)

    def every(self, model: nn.Module) -> tuple[Head, ...] | None:
        """Every head, where all of them go: random ones are then drawn from all."""
        every = every_head(sites(model))
        return every if len(self.heads) == len(every) else None

    def check(self, model: nn.Module) -> None:
        """Refuse a comparison with others where there are not as many.

        Raises:
            BadValue: if there are not.
        """
        total, gone = len(every_head(sites(model))), len(self.heads)
        if self.draws and gone < total < 2 * gone:
            raise BadValue(
                "against: {gone} of {total} heads leave only {total_2} others to draw "
                "from; choose fewer heads, or all, which are held against a random order",
                gone=gone,
                total=total,
                total_2=total - gone,
            )


@dataclass(frozen=True, eq=False)
class Measured:
    """What was found.

    Attributes:
        model: name, source, class, type, parameters, layers, heads.
        plan: what was done.
        reading: on which texts.
        points: the loss without any head, and after each step.
        comparisons: for each step the heads against as many random ones; empty where none were
            asked for.
    """

    model: Mapping[str, str | int]
    plan: Plan
    reading: Reading
    points: tuple[Point, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def order(self) -> tuple[Head, ...]:
        """The heads in the order in which they went."""
        return self.points[-1].removed

    @property
    def whole(self) -> bool:
        """Whether every head of the model went."""
        return len(self.order) == self.model["heads"]


def measure(loaded: Loaded, plan: Plan, reading: Reading, progress: Progress) -> Measured:
    """Take the heads out and measure the loss.

    Raises:
        BadType, BadValue: as `headwise.heads.effect.curve`.
    """
    how = How(plan.how, reading.reference(), plan.seed)
    loss = partial(next_token_loss, start=reading.start)
    steps = min(plan.steps, len(plan.heads))
    reads = 1 + steps * (2 if plan.order == "importance" else 1)
    reads += 1 + 2 * steps if plan.draws else 0
    told = _Told(loss, progress, reads * len(reading.measured))
    points = curve(
        loaded.model, reading.batches(), told, order=plan.order, heads=plan.heads,
        step=1 / steps, how=how,
    )  # fmt: skip
    comparisons: tuple[Comparison, ...] = ()
    if plan.draws:
        comparisons = compared(
            loaded.model,
            lambda seed: reading.share(seed - plan.seed, plan.draws),
            [point.removed for point in points[1:]],
            told,
            seeds=plan.seeds,
            how=how,
            others=plan.every(loaded.model),
        )
    told.finish()
    return Measured(facts(loaded), plan, reading, points, comparisons)


def facts(loaded: Loaded) -> dict[str, str | int]:
    """The model's name, kind and sizes, in an order fit for reading."""
    found = sites(loaded.model)
    return {
        "name": loaded.name,
        "source": loaded.source,
        "class": type(loaded.model).__name__,
        "type": str(loaded.config.model_type),
        "parameters": sum(weight.numel() for weight in loaded.model.parameters()),
        "layers": sum(len(site.layers) for site in found),
        "heads": len(every_head(found)),
    }


class _Told:
    """A loss that says how many texts it has read."""

    def __init__(self, loss: Loss, progress: Progress, total: int) -> None:
        self._loss, self._progress, self._total, self._done = loss, progress, total, 0

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        found = self._loss(model, batch)
        self._done += len(found)
        self._progress(min(self._done, self._total), self._total)
        return found

    def finish(self) -> None:
        """The end is reached, however many steps rounding made of it."""
        if self._done < self._total:
            self._progress(self._total, self._total)
