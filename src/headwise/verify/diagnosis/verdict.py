"""`verify`: compare one target with the oracle and PyTorch, and diagnose where it differs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch

from headwise.errors import HeadwiseError
from headwise.lang import Text
from headwise.masks import padding
from headwise.verify.checks import LENGTH, Subject, compute, masked_job, of_pipeline, unmasked_job
from headwise.verify.checks.contract import ANY_FUNCTION, BLACK_BOX, CONTRACT, MASKS, jobs
from headwise.verify.checks.edge_cases import COMPILED, edge_case_jobs
from headwise.verify.checks.mutation_testing import CheckResult, examine
from headwise.verify.checks.special_cases import OTHER_SIZES, cache_jobs
from headwise.verify.diagnosis import first_difference, first_inside, matching_quantities, record
from headwise.verify.diagnosis.notes import notes_on
from headwise.verify.diagnosis.snippet import minimise
from headwise.verify.diagnosis.source_line import SourceLine, likely_lines
from headwise.verify.mistakes import MISTAKES, Mistake, Observation, explain, explain_gradients
from headwise.verify.oracle import oracle
from headwise.verify.oracle.jobs import Job, Outcome, self_job
from headwise.verify.oracle.pipeline import Pipeline
from headwise.verify.target import NotRecognised, no_memory, not_recognised, one_line
from headwise.verify.target.calls.guarded_call import OutOfMemory
from headwise.verify.target.construction.resizing import (
    at_size,
    beyond_definition,
    has_heads,
    unused_parameters,
)
from headwise.verify.target.conventions import Conventions
from headwise.verify.target.runners import FunctionRunner, subject_of
from headwise.verify.target.runners import compiled as under_compile
from headwise.verify.target.stated import NOTHING, Stated
from headwise.verify.target.trials.discovery import black_box, discover

DTYPE = torch.float32  # the dtype in which targets are run; most targets support no other


Status = Literal["accepted", "differs", "unproven"]

Watch = Callable[[str, str], None]
"""Called with the kind of a step, "check" or "call", and its description."""


def _ignore(kind: str, words: str) -> None:
    del kind, words


@dataclass(frozen=True, eq=False)
class Report:
    """The report on one target.

    Attributes:
        name: the name of the target, as on the command line.
        embed_dim: E, the size of the inputs.
        heads: H, the number of heads.
        findings: the results of all checks.
        step: the first step at which the target differs, or None.
        appeared: the quantities of the oracle that appeared inside the target.
        mistakes: sets of known mistakes; each set gives exactly the target's output.
        conventions: the calling conventions of the target, found by trial.
        notes: differences that are not failures.
        seed: the seed of the inputs and weights.
        lines: the most likely source line of each mistake, by name.
        smallest: source that shows each failure on a small input, by the name of the check.
        not_compared: why the target was not compared with the oracle, or None if it was.
    """

    name: str
    embed_dim: int
    heads: int
    findings: tuple[CheckResult, ...]
    step: str | None
    appeared: frozenset[str]
    mistakes: tuple[tuple[Mistake, ...], ...]
    conventions: Conventions
    notes: tuple[Text, ...]
    seed: int = 0
    lines: Mapping[str, SourceLine] = field(default_factory=dict)
    smallest: Mapping[str, str] = field(default_factory=dict)
    not_compared: NotRecognised | None = None

    @property
    def accepted(self) -> bool:
        """Whether every check passes and every mask argument is understood."""
        return self.status == "accepted"

    @property
    def status(self) -> Status:
        """The verdict in one word.

        "unproven" where no check failed, and its numbers could not be compared with any, or a mask
        was not understood.
        """
        if not all(f.passed for f in self.findings):
            return "differs"
        tried = any(f.trials for f in self.findings)
        understood = tried and not self.not_compared and not self.conventions.unknown
        return "accepted" if understood else "unproven"

    def _repr_html_(self) -> str | None:
        from headwise.verify.report import data
        from headwise.verify.report.notebook import in_notebook
        from headwise.verify.report.report_document import document

        return in_notebook(document(data(self)))


def verify(
    target: object,
    name: str = "target",
    *,
    embed_dim: int = 15,
    heads: int = 3,
    seed: int = 0,
    watch: Watch | None = None,
    compiled: bool = False,
    stated: Stated = NOTHING,
) -> Report:
    """Compare an attention with the oracle. This runs the code of the target.

    Args:
        target: a class of modules, a module, a function of q, k and v (B, H, L, D), or an adapter,
            a function of x, weights, heads and mask.
        name: how the report calls it.
        embed_dim: E to try it with.
        heads: H to try it with; divides E.
        seed: of the inputs and weights that distinguish conventions and mistakes.
        watch: called before each step: with "check" and the name of a check, or with "call" and the
            arguments' names and shapes of a call of the target.
        compiled: whether to check it under `torch.compile` as well, which takes some seconds.
        stated: conventions that are known; the others are found by trial.

    Raises:
        BadFile: if the target is not recognised; the message shows the adapter to write.
        BadValue: if embed_dim is not a multiple of heads.

    Example:
        >>> import torch
        >>> verify(torch.nn.MultiheadAttention).accepted
        True
    """
    try:
        report = _reported(target, (name, embed_dim, heads), seed, watch or _ignore, stated)
        if report.not_compared:
            return report
        if compiled:
            report = _with_compiled(report)
        named = [mistake for group in report.mistakes for mistake in group]
        shown = minimise(target, name, report.conventions, report.findings)
        return replace(report, lines=likely_lines(target, named), smallest=shown)
    except HeadwiseError:
        raise
    except OutOfMemory as error:
        raise no_memory(name, str(error)) from error
    except (Exception, SystemExit) as error:  # the code of the target may raise anything
        details = one_line(error, 300)
        raise not_recognised(Text("{name} raises {error}", name=name, error=details)) from error


def _with_compiled(report: Report) -> Report:
    own = under_compile(report.conventions)
    if own is None:
        return report
    subject = own.subject(report.name, report.embed_dim, report.heads)
    return replace(report, findings=(*report.findings, examine(COMPILED, subject, DTYPE)))


Called = tuple[str, int, int]  # the name of the target, E and H


def _reported(target: object, called: Called, seed: int, watch: Watch, stated: Stated) -> Report:
    """The report on a target; without an oracle where its weights are not found."""
    name, size = called[0], called[1:]
    why: NotRecognised | None = None
    log = partial(watch, "call")
    try:
        conventions = discover(target, name, size, seed, stated, log)
        subject, checks = _subject(target, name, conventions), CONTRACT
    except NotRecognised as error:
        observed = black_box(target, name, size, seed, error, log)
        if observed is None:
            raise
        conventions, why = observed, error
        subject, checks = subject_of(conventions, name), BLACK_BOX
    findings = []
    for check in checks:
        watch("check", check.name)
        findings.append(examine(check, subject, DTYPE))
    diagnosis: Diagnosis = (None, frozenset(), ())
    if why is None:
        diagnosis = _diagnose(conventions, subject, findings, seed)
        if not diagnosis[2] and not all(finding.passed for finding in findings):
            why = beyond_definition(conventions)
        if why is not None:  # what can be checked without the oracle
            itself = subject_of(conventions, name)
            findings = [examine(check, itself, DTYPE) for check in ANY_FUNCTION]
            diagnosis = (None, frozenset(), ())
    notes = notes_on(conventions, subject)
    own = (name, *conventions.size)
    return Report(*own, tuple(findings), *diagnosis, conventions, notes, seed, not_compared=why)


def _subject(target: object, name: str, conventions: Conventions) -> Subject:
    """The target as a subject that can be had at another size."""

    def resized(embed_dim: int, heads: int) -> Subject | None:
        own = at_size(target, name, conventions, (embed_dim, heads))
        return (
            None
            if own is None or not has_heads(target, own)
            else own.subject(name, embed_dim, heads)
        )

    subject = conventions.subject(name, *conventions.size)
    return replace(subject, resized=resized, unused=partial(unused_parameters, conventions))


Diagnosis = tuple[str | None, frozenset[str], tuple[tuple[Mistake, ...], ...]]


def _diagnose(
    conventions: Conventions, subject: Subject, findings: Sequence[CheckResult], seed: int
) -> Diagnosis:
    if all(finding.passed for finding in findings):
        return None, frozenset(), ()
    seen = _seen(subject, seed)
    whole: tuple[Run, list[Observation]] = (partial(compute, subject), seen)
    wrong = [item for item in (whole, *_through(subject, seen)) if _wrong(item[1])]
    stale = any(f.check.name == "mask_of_one_call" and not f.passed for f in findings)
    if wrong and stale and conventions.exact:  # right at first, and wrong after a mask
        return "mask", frozenset(), tuple((m,) for m in MISTAKES if m.check == "mask_of_one_call")
    if not wrong:
        failed = [finding for finding in findings if not finding.passed and not finding.raised]
        mistakes = _mistakes(subject, failed, seen)
        return (mistakes[0][0].step if mistakes else None), frozenset(), mistakes
    most = 1 if conventions.unexplained else 2
    explained = ((run, offered, explain(offered, most=most)) for run, offered in wrong)
    run, offered, mistakes = next((item for item in explained if item[2]), (*wrong[0], ()))
    job = _wrong(offered)[0].job
    appeared = matching_quantities(record(partial(run, job)), oracle(job, DTYPE), oracle(job))
    first = first_inside if isinstance(conventions.runner, FunctionRunner) else first_difference
    step = mistakes[0][0].step if mistakes else first(appeared)
    return step, appeared, mistakes


Run = Callable[[Job], Outcome | None]


def _wrong(seen: list[Observation]) -> list[Observation]:
    return [item for item in seen if not item.right]


def _through(subject: Subject, seen: list[Observation]) -> Iterator[tuple[Run, list[Observation]]]:
    """Return the target with masks in one argument only, and its unmasked observations."""
    unmasked = [item for item in seen if item.job.mask == subject.base]
    masked = [masked_job(subject, DTYPE, mask) for _, mask in MASKS[1:]]
    for _, way in subject.ways or ():
        yield way, [*unmasked, *_observed(way, masked)]


def _mistakes(
    subject: Subject, failed: list[CheckResult], seen: list[Observation]
) -> tuple[tuple[Mistake, ...], ...]:
    """Find the mistakes of a target whose outputs are correct for ordinary inputs."""
    names = {finding.check.name for finding in failed}
    if names and names <= {"module_gradients", "masked_gradients"}:
        own = (subject.base, *([padding([LENGTH, 0])] if "masked_gradients" in names else []))
        tried = [masked_job(subject, DTYPE, mask) for mask in own]
        return explain_gradients(lambda job: compute(subject, job) or seen[0].outcome, tried)
    candidates = [m for m in MISTAKES for f in failed if _fails_alike(m, f, subject)]
    rare = _observed(partial(compute, subject), edge_case_jobs(subject, DTYPE, names))
    if "another_size" in names:
        rare += _at_other_sizes(subject)
    if "cache_continues" in names and subject.cached is not None:
        rare += _observed(subject.cached, cache_jobs(subject, DTYPE))
    explained = explain([*seen, *rare], candidates, most=1 if rare else 2)
    return _covering(explained, failed, subject)


def _covering(
    explained: tuple[tuple[Mistake, ...], ...], failed: list[CheckResult], subject: Subject
) -> tuple[tuple[Mistake, ...], ...]:
    """Of several single mistakes, those with which the most of the failed checks fail."""
    if len(explained) < 2 or any(len(group) > 1 for group in explained):
        return explained
    counts = [
        sum(not examine(f.check, _with_mistake(group[0], subject), DTYPE).passed for f in failed)
        for group in explained
    ]
    pairs = zip(explained, counts, strict=True)
    return tuple(group for group, count in pairs if count == max(counts))


def _at_other_sizes(subject: Subject) -> list[Observation]:
    """Observations of the target at another E, H and D."""
    for size in OTHER_SIZES:
        other = None if subject.resized is None else subject.resized(*size)
        if other is not None and size[0] // size[1] != subject.embed_dim // subject.heads:
            seen = _observed(partial(compute, other), [unmasked_job(other, DTYPE)])
            if seen:
                return seen
    return []


def _fails_alike(mistake: Mistake, finding: CheckResult, subject: Subject) -> bool:
    """Whether the check of a mistake fails in the same trial for the mutant and the target."""
    if mistake.check != finding.check.name:
        return False
    if finding.check.name in ("inputs_unchanged", "parameters_used"):  # trials name arguments
        return finding.failed.startswith(("mask:", "parameter ")) == (mistake.subject is not None)
    return examine(finding.check, _with_mistake(mistake, subject), DTYPE).failed == finding.failed


def _with_mistake(mistake: Mistake, subject: Subject) -> Subject:
    """The oracle with a mistake, as a subject of the target's size."""
    plain = Pipeline().with_steps(mistake.replacement)
    module = of_pipeline(mistake.name, plain)
    wrong = replace(
        subject,
        module=module.module,
        resized=module.resized,
        cached=module.module,
        attend=None,
        ways=None,
        together=None,
        truth=None,
    )
    return wrong if mistake.subject is None else mistake.subject(wrong)


def _seen(subject: Subject, seed: int) -> list[Observation]:
    """Observe the target for two inputs, in cross-attention and under every mask."""
    size, mask = (subject.embed_dim, subject.heads), subject.base
    own = [self_job(*size, length=LENGTH, mask=mask, seed=seed + n) for n in (0, 1)]
    tried = [*jobs(subject, DTYPE, seeds=(seed, seed + 1)), *map(subject.fit, own)]
    tried += [replace(subject.fit(own[0]), mask=mask) for _, mask in MASKS[1:]]
    return _observed(partial(compute, subject), tried)


def _observed(run: Run, jobs: Iterable[Job]) -> list[Observation]:
    """Yield an observation for each job that the target supports without raising."""
    seen = []
    for job in jobs:
        with suppress(Exception):
            outcome = run(job)
            if outcome is not None:
                seen.append(Observation(job, outcome))
    return seen
