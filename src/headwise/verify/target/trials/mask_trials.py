"""Find by trial in which form a target takes its masks."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from headwise.verify.checks import PADDED, random_pairs
from headwise.verify.mistakes import Observation, explain
from headwise.verify.oracle.jobs import Job, Outcome
from headwise.verify.target.calls.mask_forms import MaskForm, fits_statement
from headwise.verify.target.conventions import Conventions, Masks, Runner, without_padded_queries
from headwise.verify.target.stated import MaskTrue
from headwise.verify.target.trials.influence import equal_influence, influences


@dataclass(frozen=True, eq=False)
class MaskTrial:
    """One mask form that did not raise, and its observation."""

    form: MaskForm
    seen: Observation
    runner: Runner
    masks: Masks

    def run(self, job: Job) -> Outcome:
        """The target with this mask."""
        return self.runner.run(job, self.masks)

    @cached_property
    def right(self) -> bool:
        """Whether the output is exact, at least in the rows of real queries."""
        return self.seen.right or self.for_real_queries.seen.right

    @cached_property
    def for_real_queries(self) -> "MaskTrial":
        """The same trial, of which the rows of padded queries are left out."""
        outcome = without_padded_queries(self.seen.outcome, self.seen.job)
        form = replace(self.form, hides_queries=True)
        return replace(self, form=form, seen=Observation(self.seen.job, outcome))


PAIRS = random_pairs(seed=3)

ELSEWHERE = re.compile(r"(?i)mem|cross|enc|context|ctx|src|tgt|trg|source|target")
"""Names of masks of one of two sequences."""

Fits = Callable[[MaskTrial], bool]  # whether an encoding fits what was observed


Meaning = Callable[[str, bool], MaskTrue | None]
"""What the documentation says of True in an argument, which is the only mask or not."""


def with_forms(
    conventions: Conventions,
    job: Job,
    fits: tuple[Fits, ...] | None = None,
    documented: Meaning = lambda _argument, _alone: None,
) -> Conventions:
    """For each mask argument the best encoding, with every shape that works.

    An argument that is no mask by its name is one where a form of it hides exactly what it should.
    """
    fits = fits or (influential, partial(_explained, most=1), partial(_explained, most=2))
    signature, kept = conventions.runner.signature, list[MaskForm]()
    certain, silent, contradicted = True, list[str](), list[tuple[str, MaskTrue]]()
    for argument in (*signature.masks, *signature.maybe):
        trials = _trials(conventions, job, argument)
        alone = len(signature.masks) + len(signature.maybe) == 1
        stated = conventions.stated.mask_true
        meaning, against = stated or documented(argument, alone), False
        if meaning is not None:
            agreeing = [t for t in trials if fits_statement(t.form, meaning)]
            against = not any(t.right for t in agreeing) and any(t.right for t in trials)
            contradicted += [(argument, meaning)] * (against and stated is None)
            trials = agreeing or trials
        exact = [t.form if t.seen.right else t.for_real_queries.form for t in trials if t.right]
        named = argument in signature.masks or against
        if exact:
            kept += [form for form in exact if form.encoding == exact[0].encoding]
        elif named and trials and _silent(trials, conventions, job):
            silent.append(argument)
        elif named or conventions.neutral:
            kept += _alike(trials, conventions.neutral, fits if named else (influential,))
        certain = certain and (bool(exact) or not named or any(map(influential, _single(trials))))
    result = replace(
        conventions, forms=tuple(kept), certain=certain, contradicted=tuple(contradicted)
    )
    return _with_silent(result, job, silent)


def _with_silent(conventions: Conventions, job: Job, silent: list[str]) -> Conventions:
    """Arguments without any effect: ignored masks, unless they are masks of another sequence.

    With another argument that hides what it should, those named after another sequence are.
    """
    if conventions.forms:
        elsewhere = [name for name in silent if ELSEWHERE.search(name)]
        conventions = replace(conventions, excused=frozenset(elsewhere))
        silent = [name for name in silent if name not in elsewhere]
    forms = list(conventions.forms)
    for argument in silent:
        trials = _single(_trials(conventions, job, argument))
        forms += [t.form for t in trials[:1]]
    return replace(conventions, forms=tuple(forms))


def _silent(trials: list[MaskTrial], conventions: Conventions, job: Job) -> bool:
    """Whether no mask of any form changes the output."""
    if conventions.neutral:
        return False
    plain = conventions.runner.run(job, {}).output
    return all(torch.equal(trial.seen.outcome.output, plain) for trial in trials)


def _trials(conventions: Conventions, job: Job, argument: str) -> list[MaskTrial]:
    runner, trials = conventions.runner, []
    padded, pairs = (replace(job, mask=mask & conventions.base) for mask in (PADDED, PAIRS))
    forms = [form for form in runner.forms if form.argument == argument]
    for form in forms:
        tried, mask = (pairs, PAIRS) if "q" in form.shape.split() else (padded, PADDED)
        encoded = form.encode(replace(job, mask=mask).allowed)
        outcome = None if encoded is None else attempt(runner, tried, {argument: encoded})
        if encoded is not None and outcome is not None:
            seen = Observation(tried, outcome)
            trials.append(MaskTrial(form, seen, runner, {argument: encoded}))
    return trials


def attempt_form(runner: Runner, job: Job, form: MaskForm) -> Outcome | None:
    """The outcome with the job's mask in one form; None where it cannot be encoded, or raises."""
    encoded = form.encode(job.allowed)
    return None if encoded is None else attempt(runner, job, {form.argument: encoded})


def attempt(runner: Runner, job: Job, masks: Masks) -> Outcome | None:
    """The outcome with these masks; None where the target raises."""
    try:
        return runner.run(job, masks)
    except Exception:
        return None


def _single(trials: list[MaskTrial]) -> list[MaskTrial]:
    """The first trial of each encoding."""
    return list({trial.form.encoding: trial for trial in reversed(trials)}.values())[::-1]


def _alike(trials: list[MaskTrial], must: bool, ways: tuple[Fits, ...]) -> list[MaskForm]:
    """Every shape of the best encoding where none equals the oracle.

    Where nothing fits, no mask is given, so that a guess does not count against the target; where
    a mask is required, the first encoding is taken.
    """
    for fits in (*ways, *((bool,) if must else ())):
        for trial in _single(trials):
            if fits(trial):
                return [t.form for t in trials if t.form.encoding == trial.form.encoding]
    return []


def influential(trial: MaskTrial) -> bool:
    """Whether exactly the tokens that the mask allows have an influence."""
    job = trial.seen.job
    return equal_influence(influences(trial.run, job), job.mask, job)


def _explained(trial: MaskTrial, most: int) -> bool:
    return bool(explain([trial.seen], most=most))
