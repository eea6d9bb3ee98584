"""Discover a target's conventions by trial: axis order, its own mask, its mask encoding."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor, nn

from headwise.errors import BadFile
from headwise.lang import Text
from headwise.masks import Mask, causal, full, window
from headwise.verify.checks import LENGTH, PADDED, random_pairs
from headwise.verify.mistakes import Observation, explain
from headwise.verify.oracle.jobs import Job, Outcome, self_job
from headwise.verify.oracle.tolerance import SLACK, judge_job
from headwise.verify.target import NotRecognised, no_function, not_recognised, one_line
from headwise.verify.target.construct import make, takes_dropout
from headwise.verify.target.conventions import CallLog, Conventions, Masks, Runner
from headwise.verify.target.module_runner import ModuleRunner
from headwise.verify.target.parameter_names import Binding
from headwise.verify.target.runners import BlackBoxRunner, FunctionRunner
from headwise.verify.target.signature import MaskForm, read_signature


def find_conventions(runner: Runner, embed_dim: int, heads: int, seed: int) -> Conventions:
    """Find the conventions of a target by trial.

    Raises:
        BadFile: if it raises however it is called.
    """
    job = self_job(embed_dim, heads, length=LENGTH, seed=seed)
    job = job.fitted(runner.lacks, runner.groups)
    first, neutral, forms = _first(runner.variants, job)
    tried = _candidates(runner, (embed_dim, heads), neutral, forms)[first:]
    exact = (c for mask in (full(), causal()) for c in tried if _equals(c, job, mask))
    chosen = next(exact, None) or _banded(tried, job) or _understood(tried, job) or tried[0]
    chosen = replace(chosen, base=_base(chosen, job))
    return _with_forms(chosen, job)


def _candidates(
    runner: Runner, size: tuple[int, int], neutral: bool, forms: tuple[MaskForm, ...]
) -> list[Conventions]:
    return [
        Conventions(variant, full(), forms, neutral, certain=False, variant=i, size=size)
        for i, variant in enumerate(runner.variants)
    ]


def _first(readings: Sequence[Runner], job: Job) -> tuple[int, bool, tuple[MaskForm, ...]]:
    """The index of the first variant that can be called, and the result of `_callable`."""
    first = readings[0]
    on_arrays = readings[1] if isinstance(first, FunctionRunner) else None
    try:
        neutral, forms = _callable(first, job)
    except BadFile:
        if on_arrays is None:
            raise
    else:
        if on_arrays is None or not _wants_arrays(first, job, forms if neutral else ()):
            return 0, neutral, forms
    with suppress(BadFile):
        return 1, *_callable(readings[1], job)
    return 0, *_callable(first, job)


def _wants_arrays(runner: Runner, job: Job, forms: Sequence[MaskForm]) -> bool:
    """Whether a function passes its tensors to NumPy, which rejects those with gradients."""
    masks = {form.argument: form.encode(job.allowed) for form in forms[:1]}
    try:
        runner.run(job.tracked(), {name: mask for name, mask in masks.items() if mask is not None})
    except RuntimeError as error:
        return "numpy" in str(error).lower()
    except Exception:
        return False
    return False


def observe(runner: Runner, embed_dim: int, heads: int, seed: int) -> Conventions | None:
    """Find the conventions of a target with unknown weights, by the influence of tokens.

    None where no token changes another's output. Raises like `find_conventions`.
    """
    job = self_job(embed_dim, heads, length=LENGTH, seed=seed)
    neutral, forms = _callable(runner, job)
    tried = _candidates(runner, (embed_dim, heads), neutral, forms)
    seen = [(c, influences(run, job)) for c in tried if (run := _runs(c, job))]
    for candidate, influence in seen:
        for mask in (full(), causal()):
            if _equal(influence, mask, job):
                return _with_forms(replace(candidate, base=mask), job, (_influential,))
    some = [candidate for candidate, influence in seen if bool(influence.any())]
    return _with_forms(some[0], job, (_influential,)) if some else None


def _callable(runner: Runner, job: Job) -> tuple[bool, tuple[MaskForm, ...]]:
    error_text = ""
    if not runner.signature.needs_mask:
        try:
            runner.run(job, {})
        except Exception as raised:
            error_text = one_line(raised)
        else:
            return False, runner.forms
    working = tuple(form for form in runner.forms if _attempt(runner, job, form))
    if not working:
        function = isinstance(runner, FunctionRunner)
        batch, length, embed_dim = job.query.shape
        split = (batch, job.heads, length, embed_dim // job.heads)
        arguments = f"q, k, v {split}" if function else f"x {tuple(job.query.shape)}"
        error = error_text or Text("an error for every mask")
        reason = Text(
            "calling it with {arguments} raises {error}", arguments=arguments, error=error
        )
        raise no_function(reason) if function else not_recognised(reason)
    return True, working


def _attempt(runner: Runner, job: Job, form: MaskForm) -> Outcome | None:
    """The outcome with the job's mask in one form; None where it cannot be encoded, or raises."""
    encoded = form.encode(job.allowed)
    with suppress(Exception):
        return None if encoded is None else runner.run(job, {form.argument: encoded})
    return None


def _equals(conventions: Conventions, job: Job, mask: Mask) -> bool:
    """Whether the target without a mask equals the oracle with this mask."""
    try:
        outcome = conventions.runner.run(job, conventions.masks(replace(job, mask=full())) or {})
    except Exception:
        return False
    return judge_job(outcome, replace(job, mask=mask)).accepted


def _base(conventions: Conventions, job: Job) -> Mask:
    """The target's own mask, by its output, its influences, or a known mistake."""
    for mask in (full(), causal()):
        if _equals(conventions, job, mask):
            return mask
    run = _runs(conventions, job)
    if run is None:
        return full()
    seen = influences(run, job)
    for mask in (causal(), *_bands(seen, job)):
        if _equal(seen, mask, job):
            return mask
    everything = _equal(seen, full(), job)
    for most in (1,) if everything else (1, 2):  # a softmax over the queries lets the future in
        for mask in (full(), causal()):
            if _explained_under(mask, job, run, most):
                return mask
    return full() if bool(seen.sum() > seen.numel() // 2) else causal()


def _bands(seen: Tensor, job: Job) -> tuple[Mask, ...]:
    pairs = ((left, right) for left in range(LENGTH - 1) for right in range(LENGTH - 1))
    windows = (window(left, right) for left, right in pairs if left + right)
    return tuple(mask for mask in windows if _equal(seen, mask, job))


def _banded(tried: Sequence[Conventions], job: Job) -> Conventions | None:
    for candidate in tried:
        run = _runs(candidate, job)
        bands = () if run is None else _bands(influences(run, job), job)
        if any(_equals(candidate, job, mask) for mask in bands):
            return candidate
    return None


def _understood(tried: Sequence[Conventions], job: Job) -> Conventions | None:
    if len(tried) == 1:
        return None
    runs = [(candidate, run) for candidate in tried if (run := _runs(candidate, job)) is not None]
    masks = [(full(), causal(), *_bands(influences(run, job), job)) for _, run in runs]
    for most in (1, 2):
        for (candidate, run), own in zip(runs, masks, strict=True):
            if any(_explained_under(mask, job, run, most) for mask in own):
                return candidate
    return None


def _explained_under(mask: Mask, job: Job, run: Callable[[Job], Outcome], most: int) -> bool:
    return bool(explain([Observation(replace(job, mask=mask), run(job))], most=most))


def _runs(conventions: Conventions, job: Job) -> Callable[[Job], Outcome] | None:
    masks = conventions.masks(replace(job, mask=full())) or {}
    try:
        conventions.runner.run(job, masks)
    except Exception:
        return None
    return lambda inputs: conventions.runner.run(inputs, masks)


def influences(run: Callable[[Job], Outcome], job: Job) -> Tensor:
    """(B, L, L): whether another token j changes output i of its sample; the diagonal is False."""
    before = run(job).output.detach()
    determined = ~before.isnan().any(-1)[..., None]  # a row that is NaN shows nothing
    rounding = SLACK[before.dtype] * before.abs().nan_to_num(0.0).max()
    columns = []
    for j in range(LENGTH):
        x = job.query.clone()
        x[:, j] = 1.0 - 2.0 * x[:, j]
        after = run(job.with_input(x)).output.detach()
        columns.append(~((after - before).abs().amax(-1) <= rounding))  # a NaN is a change
    return torch.stack(columns, -1) & determined & ~torch.eye(LENGTH, dtype=torch.bool)


def _equal(influence: Tensor, mask: Mask, job: Job) -> bool:
    """Whether exactly the other tokens that a mask allows have an influence."""
    others = ~torch.eye(LENGTH, dtype=torch.bool)
    allowed = mask.dense(job.shape)[:, 0].expand(job.shape.batch, -1, -1)
    return bool((influence == allowed & others).all())


def _with_forms(
    conventions: Conventions, job: Job, fits: tuple["Fits", ...] | None = None
) -> Conventions:
    """For each mask argument the best encoding, with every shape that works."""
    fits = fits or (_influential, partial(_explained, most=1), partial(_explained, most=2))
    kept: list[MaskForm] = []
    certain = True
    for argument in conventions.runner.signature.masks:
        trials = _trials(conventions, job, argument)
        exact = [trial.form for trial in trials if trial.seen.right]
        same = [form for form in exact if form.encoding == exact[0].encoding]
        kept += same or _alike(trials, conventions.neutral, fits)
        certain = certain and (
            bool(exact) or any(_influential(trial) for trial in _single_entries(trials))
        )
    return replace(conventions, forms=tuple(kept), certain=certain)


@dataclass(frozen=True, eq=False)
class _MaskTrial:
    """One mask form that did not raise, and its observation."""

    form: MaskForm
    seen: Observation
    runner: Runner
    masks: Masks

    def run(self, job: Job) -> Outcome:
        return self.runner.run(job, self.masks)


Fits = Callable[[_MaskTrial], bool]  # whether an encoding fits what was observed


def _trials(conventions: Conventions, job: Job, argument: str) -> list[_MaskTrial]:
    runner, trials = conventions.runner, []
    padded, pairs = (
        replace(job, mask=mask & conventions.base) for mask in (PADDED, random_pairs(seed=3))
    )
    for form in conventions.forms:
        tried = pairs if "q" in form.shape.split() else padded
        encoded = form.encode(tried.allowed) if form.argument == argument else None
        outcome = None if encoded is None else _attempt(runner, tried, form)
        if encoded is not None and outcome is not None:
            seen = Observation(tried, outcome)
            trials.append(_MaskTrial(form, seen, runner, {argument: encoded}))
    return trials


def _single_entries(trials: list[_MaskTrial]) -> list[_MaskTrial]:
    return list({trial.form.encoding: trial for trial in reversed(trials)}.values())[::-1]


def _alike(trials: list[_MaskTrial], must: bool, ways: tuple[Fits, ...]) -> list[MaskForm]:
    """Every shape of the best encoding where none equals the oracle.

    Where nothing fits, no mask is given, so that a guess does not count against the target; where
    a mask is required, the first encoding is taken.
    """
    for fits in (*ways, *((bool,) if must else ())):
        for trial in _single_entries(trials):
            if fits(trial):
                return [t.form for t in trials if t.form.encoding == trial.form.encoding]
    return []


def _influential(trial: _MaskTrial) -> bool:
    """Whether exactly the tokens that the mask allows have an influence."""
    job = trial.seen.job
    return _equal(influences(trial.run, job), job.mask, job)


def _explained(trial: _MaskTrial, most: int) -> bool:
    return bool(explain([trial.seen], most=most))


def black_box(
    target: object, name: str, size: tuple[int, int], seed: int, why: NotRecognised, log: CallLog
) -> Conventions | None:
    """The conventions of a target with unknown weights; None where they are not found.

    `size` is E and H, and `why` the error of the search for its weights.
    """
    cls = target if isinstance(target, type) else type(target)
    if not issubclass(cls, nn.Module):
        return None

    @cache
    def instance(dropout: float) -> nn.Module:
        return target if isinstance(target, nn.Module) else make(cls, *size, dropout)

    try:
        module = ModuleRunner(
            make=instance,
            signature=read_signature(instance(0.0).forward, f"{name}.forward"),
            binding=Binding({}),
            drops=cls is target and takes_dropout(cls),
            either_axis_order="batch_first" not in inspect.signature(cls).parameters,
            log=log,
        )
        return observe(BlackBoxRunner(module, why, module.signature, module.drops), *size, seed)
    except NotRecognised:
        return None
