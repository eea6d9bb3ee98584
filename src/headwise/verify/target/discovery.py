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
from headwise.masks import Mask, causal, from_tensor, full, padding, window
from headwise.verify.mistakes import Observation, explain
from headwise.verify.oracle.jobs import Job, Outcome, self_job
from headwise.verify.oracle.tolerance import SLACK, judge_job
from headwise.verify.target import NotRecognised, no_function, not_recognised, one_line
from headwise.verify.target.construct import make, takes_dropout
from headwise.verify.target.conventions import LENGTH, CallLog, Conventions, Masks, Runner
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
    readings = tuple(enumerate(runner.variants))[first:]
    guess = Conventions(
        readings[0][1],
        full(),
        forms,
        neutral,
        certain=False,
        variant=first,
        size=(embed_dim, heads),
    )
    tried = [replace(guess, runner=candidate, variant=i) for i, candidate in readings]
    chosen = next((c for c in tried if _equals(c, job, full())), None)
    chosen = chosen or next((c for c in tried if _equals(c, job, causal())), None)
    chosen = chosen or _banded(tried, job) or _understood(tried, job) or guess
    chosen = replace(chosen, base=_base(chosen, job))
    return _with_forms(chosen, job)


def _first(readings: Sequence[Runner], job: Job) -> tuple[int, bool, tuple[MaskForm, ...]]:
    """The index of the first variant that can be called, and how.

    Raises:
        BadFile: if none can; it says what the first one does.
    """
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
    allowed = full().dense(job.shape).expand(job.shape.batch, job.heads, -1, -1)
    masks = {form.argument: form.encode(allowed) for form in forms[:1]}
    try:
        runner.run(job.tracked(), {name: mask for name, mask in masks.items() if mask is not None})
    except RuntimeError as error:
        return "numpy" in str(error).lower()
    except Exception:
        return False
    return False


def observe(runner: Runner, embed_dim: int, heads: int, seed: int) -> Conventions | None:
    """Find the conventions of a target with unknown weights, by the influence of tokens.

    None where no token changes another's output: that is no attention.

    Raises:
        BadFile: if it raises however it is called.
    """
    job = self_job(embed_dim, heads, length=LENGTH, seed=seed)
    neutral, forms = _callable(runner, job)
    guess = Conventions(runner, full(), forms, neutral, certain=False, size=(embed_dim, heads))
    tried = [
        replace(guess, runner=candidate, variant=i) for i, candidate in enumerate(runner.variants)
    ]
    seen = [
        (candidate, influences(run, job)) for candidate in tried if (run := _runs(candidate, job))
    ]
    for candidate, influence in seen:
        for mask in (full(), causal()):
            if bool((influence == _off_diagonal(mask, job)).all()):
                return _with_forms(replace(candidate, base=mask), job, (_influential,))
    some = [candidate for candidate, influence in seen if bool(influence.any())]
    return _with_forms(some[0], job, (_influential,)) if some else None


def _callable(runner: Runner, job: Job) -> tuple[bool, tuple[MaskForm, ...]]:
    """Whether a mask is required, and the forms that do not raise."""
    error_text = ""
    if not runner.signature.needs_mask:
        try:
            runner.run(job, {})
        except Exception as error:
            error_text = one_line(error)
        else:
            return False, runner.forms
    allowed = full().dense(job.shape).expand(job.shape.batch, job.heads, -1, -1)
    working = tuple(form for form in runner.forms if _attempt(runner, job, form, allowed))
    if not working:
        function = isinstance(runner, FunctionRunner)
        arguments = f"q, k, v {_split(job)}" if function else f"x {tuple(job.query.shape)}"
        raise (no_function if function else not_recognised)(
            Text(
                "calling it with {arguments} raises {error}",
                arguments=arguments,
                error=error_text or Text("an error for every mask"),
            )
        )
    return True, working


def _split(job: Job) -> tuple[int, int, int, int]:
    """The shape of q, k and v: (B, H, L, D)."""
    batch, length, embed_dim = job.query.shape
    return (batch, job.heads, length, embed_dim // job.heads)


def _attempt(runner: Runner, job: Job, form: MaskForm, allowed: Tensor) -> Outcome | None:
    encoded = form.encode(allowed)
    if encoded is None:
        return None
    try:
        return runner.run(job, {form.argument: encoded})
    except Exception:
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
    if bool((seen == _off_diagonal(causal(), job)).all()):
        return causal()
    for band in _bands(seen, job):
        return band
    everything = bool((seen == _off_diagonal(full(), job)).all())
    for most in (1,) if everything else (1, 2):  # a softmax over the queries lets the future in
        for mask in (full(), causal()):
            if explain([Observation(replace(job, mask=mask), run(job))], most=most):
                return mask
    return full() if bool(seen.sum() > seen.numel() // 2) else causal()


def _bands(seen: Tensor, job: Job) -> tuple[Mask, ...]:
    """The windows that equal the observed influences."""
    pairs = ((left, right) for left in range(LENGTH - 1) for right in range(LENGTH - 1))
    windows = (window(left, right) for left, right in pairs if left + right)
    return tuple(m for m in windows if bool((seen == _off_diagonal(m, job)).all()))


def _banded(tried: Sequence[Conventions], job: Job) -> Conventions | None:
    """The first variant that equals the oracle under a window."""
    for candidate in tried:
        run = _runs(candidate, job)
        bands = () if run is None else _bands(influences(run, job), job)
        if any(_equals(candidate, job, mask) for mask in bands):
            return candidate
    return None


def _understood(tried: Sequence[Conventions], job: Job) -> Conventions | None:
    """The variant that the fewest mistakes explain."""
    if len(tried) == 1:
        return None
    runs = [(candidate, run) for candidate in tried if (run := _runs(candidate, job)) is not None]
    masks = [(full(), causal(), *_bands(influences(run, job), job)) for _, run in runs]
    for most in (1, 2):
        for (candidate, run), own in zip(runs, masks, strict=True):
            for mask in own:
                if explain([Observation(replace(job, mask=mask), run(job))], most=most):
                    return candidate
    return None


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
    determined = ~before.isnan().any(-1)[..., None]  # a row that is NaN tells nothing
    rounding = SLACK[before.dtype] * before.abs().nan_to_num(0.0).max()
    columns = []
    for j in range(LENGTH):
        x = job.query.clone()
        x[:, j] = 1.0 - 2.0 * x[:, j]
        after = run(replace(job, query=x, key=x, value=x)).output.detach()
        columns.append(~((after - before).abs().amax(-1) <= rounding))  # a NaN is a change
    return torch.stack(columns, -1) & determined & ~torch.eye(LENGTH, dtype=torch.bool)


def _off_diagonal(mask: Mask, job: Job) -> Tensor:
    own = torch.eye(LENGTH, dtype=torch.bool)
    return mask.dense(job.shape)[:, 0].expand(job.shape.batch, -1, -1) & ~own


Fits = Callable[["_MaskTrial"], bool]


def _with_forms(
    conventions: Conventions, job: Job, fits: tuple[Fits, ...] | None = None
) -> Conventions:
    """For each mask argument the best encoding, with every shape that works."""
    kept: list[MaskForm] = []
    certain = True
    for argument in conventions.runner.signature.masks:
        trials = _trials(conventions, job, argument)
        exact = [trial.form for trial in trials if _exact(trial)]
        kept += [form for form in exact if form.encoding == exact[0].encoding] or _alike(
            trials, conventions.neutral, fits or (_influential, _explained, _explained_by_two)
        )
        certain = certain and bool(
            exact or any(_influential(trial) for trial in _single_entries(trials))
        )
    return replace(conventions, forms=tuple(kept), certain=certain)


@dataclass(frozen=True, eq=False)
class _MaskTrial:
    """One mask form that did not raise: its job, outcome, and a function that runs it."""

    form: MaskForm
    job: Job
    outcome: Outcome
    run: Callable[[Job], Outcome]


def _trials(conventions: Conventions, job: Job, argument: str) -> list[_MaskTrial]:
    runner, trials = conventions.runner, []
    for form in conventions.forms:
        tried = replace(job, mask=_probe(form) & conventions.base)
        allowed = tried.mask.dense(job.shape).expand(job.shape.batch, job.heads, -1, -1)
        encoded = form.encode(allowed) if form.argument == argument else None
        if encoded is None:
            continue
        result = _attempt(runner, job, form, allowed)
        run = partial(_run_with, runner, {argument: encoded})
        if result is not None:
            trials.append(_MaskTrial(form, tried, result, run))
    return trials


def _single_entries(trials: list[_MaskTrial]) -> list[_MaskTrial]:
    """One trial of every encoding."""
    return list({trial.form.encoding: trial for trial in reversed(trials)}.values())[::-1]


def _alike(trials: list[_MaskTrial], must: bool, ways: tuple[Fits, ...]) -> list[MaskForm]:
    """Every shape of the best encoding where none equals the oracle.

    Where nothing fits the mask is left alone, rather than accuse the target of what was guessed;
    unless it has to be given.
    """
    for fits in (*ways, *((bool,) if must else ())):
        for trial in _single_entries(trials):
            if fits(trial):
                return [t.form for t in trials if t.form.encoding == trial.form.encoding]
    return []


def _run_with(runner: Runner, masks: Masks, job: Job) -> Outcome:
    return runner.run(job, masks)


def _exact(trial: _MaskTrial) -> bool:
    return judge_job(trial.outcome, trial.job).accepted


def _influential(trial: _MaskTrial) -> bool:
    """Whether exactly the tokens that the mask allows have an influence."""
    seen = influences(trial.run, trial.job)
    return bool((seen == _off_diagonal(trial.job.mask, trial.job)).all())


def _explained(trial: _MaskTrial) -> bool:
    return bool(explain([Observation(trial.job, trial.outcome)], most=1))


def _explained_by_two(trial: _MaskTrial) -> bool:
    return bool(explain([Observation(trial.job, trial.outcome)]))


def _probe(form: MaskForm) -> Mask:
    """A mask that this form can express: padding, or pairs without symmetry."""
    if "q" not in form.shape.split():
        return padding([LENGTH, LENGTH - 3])
    some = torch.rand(LENGTH, LENGTH, generator=torch.Generator().manual_seed(3)) > 0.4
    some.fill_diagonal_(fill_value=True)
    return from_tensor(some, "q k")


def black_box(
    target: object, name: str, size: tuple[int, int], seed: int, why: NotRecognised, log: CallLog
) -> Conventions | None:
    """The conventions of a target with unknown weights; None where they are not found.

    Args:
        target: what was asked for.
        name: how messages call it.
        size: E and H.
        seed: of the inputs.
        why: what kept its weights from being found.
        log: called with a description of every call before it is made.
    """
    if not isinstance(target, nn.Module) and not (
        isinstance(target, type) and issubclass(target, nn.Module)
    ):
        return None
    try:
        return observe(BlackBoxRunner(_whole(target, name, size, log), why), *size, seed)
    except NotRecognised:
        return None


def _whole(
    target: nn.Module | type[nn.Module], name: str, size: tuple[int, int], log: CallLog
) -> ModuleRunner:
    """All of a module, with no parameter known."""

    @cache
    def made(dropout: float) -> nn.Module:
        return target if isinstance(target, nn.Module) else make(target, *size, dropout)

    cls = type(target) if isinstance(target, nn.Module) else target
    return ModuleRunner(
        make=made,
        signature=read_signature(made(0.0).forward, f"{name}.forward"),
        binding=Binding({}),
        drops=not isinstance(target, nn.Module) and takes_dropout(cls),
        either_axis_order="batch_first" not in inspect.signature(cls).parameters,
        log=log,
    )
