"""`verify`: one target held against the oracle and PyTorch, and where it differs."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from headwise.errors import HeadwiseError
from headwise.lang import Text
from headwise.verify.adapter import not_recognised
from headwise.verify.contract import CONTRACT, jobs, masks
from headwise.verify.conventions import LENGTH, Conventions, find_conventions
from headwise.verify.diagnosis import Seen, explain, explain_gradients
from headwise.verify.facts import facts
from headwise.verify.gate import Finding, examine
from headwise.verify.jobs import Job, self_job
from headwise.verify.judging import judge_job
from headwise.verify.mistakes import MISTAKES, Mistake
from headwise.verify.oracle import oracle
from headwise.verify.subject import Subject, compute
from headwise.verify.target import runner
from headwise.verify.trace import appearing, first_difference, record

DTYPE = torch.float32
"""The dtype in which targets are run: most of them work in no other."""


@dataclass(frozen=True, eq=False)
class Report:
    """What was found about one target.

    Attributes:
        name: the target, as it was asked for.
        embed_dim: E of what it was tried with.
        heads: H of what it was tried with.
        findings: every check.
        step: the step at which it first differs, or None.
        appeared: the quantities of the oracle that were seen inside the target.
        mistakes: sets of known mistakes, each of which gives exactly what the target gives.
        conventions: how it is called, as it was found.
        notes: what is worth knowing and no failure.
    """

    name: str
    embed_dim: int
    heads: int
    findings: tuple[Finding, ...]
    step: str | None
    appeared: frozenset[str]
    mistakes: tuple[tuple[Mistake, ...], ...]
    conventions: Conventions
    notes: tuple[Text, ...]

    @property
    def accepted(self) -> bool:
        """Whether every check passed, and there was one that could fail."""
        return all(f.passed for f in self.findings) and any(f.trials for f in self.findings)


def verify(
    target: object,
    name: str = "target",
    *,
    embed_dim: int = 15,
    heads: int = 3,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Hold an attention against the oracle. This runs the target's code.

    Args:
        target: a class of modules, a module, a function of q, k and v (B, H, L, D), or an adapter,
            a function of x, weights, heads and mask.
        name: how the report calls it.
        embed_dim: E to try it with.
        heads: H to try it with; divides E.
        seed: of the inputs and weights by which conventions and mistakes are told apart.
        progress: called with the name of each check before it runs.

    Raises:
        BadFile: if the target is not recognised; the message shows the adapter to write.
        BadValue: if embed_dim is no multiple of heads.

    Example:
        >>> import torch
        >>> verify(torch.nn.MultiheadAttention).accepted
        True
    """
    try:
        return _verified(target, (name, embed_dim, heads), seed, progress)
    except HeadwiseError:
        raise
    except (Exception, SystemExit) as error:  # the target is somebody else's code
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise not_recognised(f"{name} raises {said}", f"{name} 抛出 {said}") from error


def _verified(
    target: object,
    called: tuple[str, int, int],
    seed: int,
    progress: Callable[[str], None] | None,
) -> Report:
    name, embed_dim, heads = called
    conventions = find_conventions(runner(target, name, embed_dim, heads), embed_dim, heads, seed)
    subject = conventions.subject(name, embed_dim, heads)
    findings = []
    for check in CONTRACT:
        if progress:
            progress(check.name)
        findings.append(examine(check, subject, DTYPE))
    failed = {finding.check.name for finding in findings if not finding.passed}
    step, appeared, mistakes = _diagnose(conventions, subject, failed, seed)
    return Report(
        name=name,
        embed_dim=embed_dim,
        heads=heads,
        findings=tuple(findings),
        step=step,
        appeared=appeared,
        mistakes=mistakes,
        conventions=conventions,
        notes=facts(conventions, subject),
    )


Diagnosis = tuple[str | None, frozenset[str], tuple[tuple[Mistake, ...], ...]]


def _diagnose(conventions: Conventions, subject: Subject, failed: set[str], seed: int) -> Diagnosis:
    """The step, what appeared, and the mistakes; nothing where nothing failed."""
    if not failed:
        return None, frozenset(), ()
    seen = _seen(conventions, subject, seed)
    mistakes = _mistakes(conventions, subject, failed, seen)
    wrong = next((s for s in seen if not judge_job(s.outcome, s.job).accepted), None)
    if wrong is None:
        return (mistakes[0][0].step if mistakes else None), frozenset(), mistakes
    appeared = _appeared(subject, wrong.job)
    step = mistakes[0][0].step if mistakes else first_difference(appeared)
    return step, appeared, mistakes


def _mistakes(
    conventions: Conventions, subject: Subject, failed: set[str], seen: list[Seen]
) -> tuple[tuple[Mistake, ...], ...]:
    if failed == {"eval_without_dropout"}:
        return tuple((m,) for m in MISTAKES if m.check == "eval_without_dropout")
    if failed == {"module_gradients"}:
        job = _job(conventions, subject, 0)
        return explain_gradients(lambda each: compute(subject, each) or seen[0].outcome, job)
    return explain(seen)


def _seen(conventions: Conventions, subject: Subject, seed: int) -> list[Seen]:
    """The target on everything it offers: two inputs, cross-attention, every mask."""
    tried = [*jobs(subject, DTYPE, seeds=(seed, seed + 1))]
    tried += [_job(conventions, subject, seed + n) for n in (0, 1)]
    tried += [replace(_job(conventions, subject, seed), mask=mask) for _, mask in masks()[1:]]
    seen = []
    for job in tried:
        outcome = _attempt(subject, job)
        if outcome is not None:
            seen.append(outcome)
    return seen


def _attempt(subject: Subject, job: Job) -> Seen | None:
    try:
        outcome = compute(subject, job)
    except Exception:
        return None
    return None if outcome is None else Seen(job, outcome)


def _job(conventions: Conventions, subject: Subject, seed: int) -> Job:
    """Self-attention under what the target hides by itself."""
    size = subject.embed_dim, subject.heads
    job = self_job(*size, length=LENGTH, mask=conventions.base, seed=seed)
    return replace(job, weights=job.weights.without(subject.lacks))


def _appeared(subject: Subject, job: Job) -> frozenset[str]:
    seen = record(lambda: compute(subject, job))
    return appearing(seen, oracle(job, DTYPE), oracle(job))
