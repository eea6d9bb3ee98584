"""The ablation experiment: remove heads step by step and measure the loss."""

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
    """A validated experiment: the heads to remove in order, the options and the texts.

    ``same_texts`` is true if a saved run named the heads on the texts of the loss.
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
        model: name, source, class, type, parameters, layers and heads of the model.
        plan: the experiment that was run.
        points: the loss of the intact model, and after each step.
        comparisons: the comparison with equally many random heads after each step; empty without
            ``against``.
    """

    model: Mapping[str, str | int]
    plan: AblationPlan
    points: tuple[Point, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def texts(self) -> Texts:
        """The texts of the experiment."""
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
        """Return the heads removed at a step; empty at step 0, the intact model."""
        before = len(self.points[step - 1].removed) if step else 0
        return self.points[step].removed[before:]

    def comparison_at(self, step: int) -> Comparison | None:
        """Return the comparison at a step; None at step 0 and without ``against``."""
        return self.comparisons[step - 1] if step and self.comparisons else None


def run_experiment(
    loaded: Loaded, options: AblationOptions, progress: Progress | None = None
) -> AblationResult:
    """Run the experiment of ``headwise ablate``.

    Args:
        loaded: a model that predicts the next token, from ``load(name, predicting=True)``.
        options: the options of the experiment.
        progress: a function that is called with the number of texts read and their total.

    Raises:
        BadFile, BadValue: if options conflict, a file cannot be read, or the model lacks a head or
            does not predict the next token.
    """
    options.check()
    return run_plan(loaded, plan_ablation(loaded, options, select_heads(options)), progress)


def plan_ablation(loaded: Loaded, options: AblationOptions, selection: Selection) -> AblationPlan:
    """Read the texts and validate the experiment; the errors are those of `run_experiment`."""
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
    """Remove the heads and measure the loss; the errors are those of `curve`."""
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
            "against: cannot sample {removed} random heads from the {others} others of {total}; "
            "choose fewer heads, or all heads to compare with a random order",
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
            "model: {name} does not predict the next token ({reason}); use a decoder saved with "
            "its language-model head, such as smollm2, or your own loss function in Python "
            "(headwise.heads.ablation.curve, docs/ablation.md)",
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
        """Report the total if rounding led to fewer steps than expected."""
        if self._done < self._total:
            self._progress(self._total, self._total)
