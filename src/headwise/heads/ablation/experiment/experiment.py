"""The ablation experiment: heads are removed step by step, and the loss is measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from headwise.document.text_format import clean
from headwise.errors import BadValue
from headwise.heads.ablation.ablate import grouped
from headwise.heads.ablation.curve import Comparison, Point, compared, curve
from headwise.heads.ablation.experiment.options import AblationOptions
from headwise.heads.ablation.experiment.selection import Selection, select_heads
from headwise.heads.ablation.experiment.texts import Texts, check_resampling, read_texts, together
from headwise.heads.ablation.loss import Batch, Loss, next_token_loss, run, unpredicting
from headwise.heads.ablation.loss_effects import How
from headwise.heads.ablation.methods import UNIFORM, Method, check_uniform, method_named
from headwise.heads.ablation.sites import every_head, sites
from headwise.heads.corpus.pipeline import Progress, ignore
from headwise.heads.inspection import model_facts
from headwise.heads.model_inputs import run as run_checked
from headwise.heads.models.load import Loaded
from headwise.heads.names import Head


@dataclass(frozen=True, eq=False)
class AblationPlan:
    """A checked experiment: the heads to remove, in the order given, the options and the texts.

    ``same_texts`` is whether a run named the heads on the texts that the loss is measured on.
    """

    heads: tuple[Head, ...]
    options: AblationOptions
    texts: Texts
    same_texts: bool = False

    @property
    def method(self) -> Method:
        """The ablation method."""
        return method_named(self.options.how)


@dataclass(frozen=True, eq=False)
class AblationResult:
    """The losses of an ablation experiment.

    Attributes:
        model: name, source, class, type, parameters, layers, heads.
        plan: the experiment.
        points: the loss with all heads, and after each step.
        comparisons: with as many random heads at each step; empty without comparison.
    """

    model: Mapping[str, str | int]
    plan: AblationPlan
    points: tuple[Point, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def texts(self) -> Texts:
        """The texts that the model read."""
        return self.plan.texts

    @property
    def order(self) -> tuple[Head, ...]:
        """The heads in the order of their removal."""
        return self.points[-1].removed

    @property
    def all_heads(self) -> bool:
        """Whether every head of the model was removed."""
        return len(self.order) == self.model["heads"]

    def removed_at(self, step: int) -> tuple[Head, ...]:
        """The heads removed at a step; none at step 0, the intact model."""
        before = len(self.points[step - 1].removed) if step else 0
        return self.points[step].removed[before:]

    def comparison_at(self, step: int) -> Comparison | None:
        """The comparison at a step; None for the intact model and without comparison."""
        return self.comparisons[step - 1] if step and self.comparisons else None


def run_experiment(
    loaded: Loaded, options: AblationOptions, progress: Progress | None = None
) -> AblationResult:
    """Run the experiment of ``headwise ablate``.

    Args:
        loaded: a model that predicts the next token: ``load(name, predicting=True)``.
        options: what to measure.
        progress: called with the number of texts read and their total.

    Raises:
        BadFile, BadValue: if options conflict, a file cannot be read, or the model has no such
            heads or no next-token loss.
    """
    options.check()
    return run_plan(loaded, plan_ablation(loaded, options, select_heads(options)), progress)


def plan_ablation(loaded: Loaded, options: AblationOptions, selection: Selection) -> AblationPlan:
    """Read the texts and check everything that can fail, with the errors of `run_experiment`."""
    attentions = sites(loaded.model)
    heads = selection.resolve(attentions, str(loaded.config.model_type))
    if options.how == UNIFORM.name:
        check_uniform(attentions, grouped(heads), "how")
    _check_pool(len(every_head(attentions)), len(heads), options)
    texts = read_texts(options, loaded)
    if options.how == "resample":
        at_random = every_head(attentions) if options.num_seeds else heads
        check_resampling(at_random, len(heads), attentions, texts)
    _check_loss(loaded, texts)
    return AblationPlan(heads, options, texts, selection.same_texts(texts))


def run_plan(
    loaded: Loaded, plan: AblationPlan, progress: Progress | None = None
) -> AblationResult:
    """Remove the heads and measure the loss, with the errors of `headwise.heads.ablation.curve`."""
    options, texts = plan.options, plan.texts
    how = How(options.how, together(texts.others), options.seed)
    steps = min(options.steps, len(plan.heads))
    passes = 1 + steps * (2 if options.order == "importance" else 1)
    passes += 1 + 2 * steps if options.num_seeds else 0
    loss = partial(next_token_loss, start=texts.start)
    counted = _CountedLoss(loss, progress or ignore, passes * len(texts.measured))
    points = curve(
        loaded.model, together(texts.measured), counted, order=options.order, heads=plan.heads,
        step=1 / steps, how=how,
    )  # fmt: skip
    comparisons: tuple[Comparison, ...] = ()
    every = every_head(sites(loaded.model))
    if options.num_seeds:
        comparisons = compared(
            loaded.model,
            lambda seed: texts.share(seed - options.seed, options.num_seeds),
            [point.removed for point in points[1:]],
            counted,
            seeds=range(options.seed, options.seed + options.num_seeds),
            how=how,
            others=every if len(plan.heads) == len(every) else None,
        )
    counted.finish()
    return AblationResult(model_facts(loaded, every), plan, points, comparisons)


def _check_pool(total: int, removed: int, options: AblationOptions) -> None:
    if options.num_seeds and removed < total < 2 * removed:
        raise BadValue(
            "against: {removed} of {total} heads leave only {others} others to draw "
            "from; choose fewer heads, or all, which are held against a random order",
            removed=removed,
            total=total,
            others=total - removed,
        )


def _check_loss(loaded: Loaded, texts: Texts) -> None:
    first = dict(texts.measured[0])
    run_checked(loaded, first)
    with torch.no_grad():
        reason = unpredicting(loaded.model, run(loaded.model, first))
    if reason is not None:
        raise BadValue(
            "model: {name} has no loss to measure: it predicts no next token ({reason}); "
            "give a decoder saved with its last projection, such as smollm2, or a loss of "
            "your own in Python (headwise.heads.ablation.curve, docs/ablation.md)",
            name=clean(loaded.name),
            reason=reason,
        )


class _CountedLoss:
    def __init__(self, loss: Loss, progress: Progress, total: int) -> None:
        self._loss, self._progress, self._total, self._done = loss, progress, total, 0

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = self._loss(model, batch)
        self._done += len(losses)
        self._progress(min(self._done, self._total), self._total)
        return losses

    def finish(self) -> None:
        """Report the total if rounding made fewer steps than were counted on."""
        if self._done < self._total:
            self._progress(self._total, self._total)
