"""Checks, the subjects that they examine, and the judgement of their trials."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.lang import Text
from headwise.masks import Mask, causal, from_tensor, full, padding
from headwise.positions import Position, Stage
from headwise.verify.oracle import oracle
from headwise.verify.oracle.jobs import Job, Outcome, self_job
from headwise.verify.oracle.pipeline import Pipeline
from headwise.verify.oracle.tolerance import Evidence, Verdict, judge

Ways = tuple[tuple[str, Callable[[Job], Outcome | None]], ...]
"""The name of each mask argument, with the module called with masks in that argument only."""


@dataclass(frozen=True)
class Subject:
    """An implementation under test.

    Attributes:
        name: its name in messages.
        attend: the attention alone, or None where it cannot be reached.
        module: the attention with its projections, or None where it has none.
        refuses: why it does not support a call or a job, or None where it does.
        embed_dim: E of its jobs.
        heads: H of its jobs.
        lacks: the weights it does not have, such as "q_bias"; its jobs come without them.
        ways: its mask arguments one by one; None where it takes masks in no argument.
        groups: G of its jobs, the key/value heads; None for as many as heads.
        base: the mask that it applies by itself.
        together: the module with the two sides of a mask ``a & b`` in two arguments, or None.
        jobs: the jobs of `masked_job`, whose oracle is computed once for all checks.
        position: the position encoding that is part of it, or None.
        any_position: whether it takes jobs with any position encoding.
        resized: the subject for another E and H, or None where it cannot have them.
        cached: the outcome of the last queries, with the keys before them in a cache, or None.
        unused: the names of the parameters beside the weights that have no effect.
        may_raise: whether an exception refuses a job, as a user's code does; else it is a failure.
        raised: the errors of the jobs that it refused so.
        truth: where the weights are unknown and there is no oracle: the output that a job should
            have in a dtype, which is what the subject itself returns in that dtype.
    """

    name: str
    attend: Callable[[Call], Result] | None = None
    module: Callable[[Job], Outcome | None] | None = None
    refuses: Callable[[Call | Job], Text | None] = lambda _what: None
    embed_dim: int = 15
    heads: int = 3
    lacks: frozenset[str] = frozenset()
    ways: Ways | None = None
    groups: int | None = None
    together: Callable[[Job], Outcome | None] | None = None
    base: Mask = field(default_factory=full)
    truth: Callable[[Job, torch.dtype], Tensor] | None = None
    position: Position | None = None
    any_position: bool = False
    resized: Callable[[int, int], "Subject | None"] | None = None
    cached: Callable[[Job], Outcome | None] | None = None
    unused: Callable[[], Sequence[str]] | None = None
    may_raise: bool = False
    raised: list[Exception] = field(default_factory=list, repr=False, compare=False)
    jobs: dict[object, Job] = field(default_factory=dict, init=False, repr=False, compare=False)

    def fit(self, job: Job) -> Job:
        """A job with the weights that the subject has."""
        return replace(job.fitted(self.lacks, self.groups), position=self.position)


Probe = Callable[[Subject, torch.dtype], Iterator[Evidence]]


@dataclass(frozen=True)
class Check:
    """A property that a subject must have, with its trials; mistakes refer to the name."""

    name: str
    question: Text
    probe: Probe

    @classmethod
    def of(cls, probe: Probe, question: Text) -> "Check":
        """Build the check with the name of its probe."""
        return cls(probe.__name__, question, probe)


def of_pipeline(name: str, pipeline: Pipeline) -> Subject:
    """Return a pipeline, correct or with mistakes, as a subject."""

    def module(job: Job) -> Outcome:
        trace = pipeline.run(job)
        return Outcome(trace["output"], trace["weights"])

    def refuses(what: Call | Job) -> Text | None:
        positioned = isinstance(what, Call) and what.position.stages - {Stage.INPUT}
        return Text("it has no position") if positioned else None

    def resized(embed_dim: int, heads: int) -> Subject:
        return Subject(name, module=module, refuses=refuses, embed_dim=embed_dim, heads=heads)

    return Subject(
        name,
        attend=pipeline.attend,
        module=module,
        refuses=refuses,
        any_position=True,
        resized=resized,
        cached=module,
    )


def attend(subject: Subject, call: Call) -> Result | None:
    """Return the subject's result for a call; None if it does not support the call."""
    if subject.attend is None or subject.refuses(call) is not None:
        return None
    return subject.attend(call)


def compute(subject: Subject, job: Job) -> Outcome | None:
    """Return the subject's outcome for a job; None if it does not support the job."""
    if subject.module is None or subject.refuses(job) is not None:
        return None
    try:
        return subject.module(job)
    except Exception as error:
        if not subject.may_raise:
            raise
        subject.raised.append(error)
        return None


def attempt(subject: Subject, job: Job) -> Outcome | None:
    """Like `compute`, but also return None if the subject raises."""
    try:
        return compute(subject, job)
    except Exception:
        return None


LENGTH = 7  # the sequence length of the contract, unequal to every other size


def masked_job(
    subject: Subject,
    dtype: torch.dtype,
    mask: Mask | None = None,
    *,
    batch: int = 2,
    length: int = LENGTH,
) -> Job:
    """Return a self-attention job of the subject's sizes, with only the weights that it has."""
    key, size = (dtype, mask, batch, length), (subject.embed_dim, subject.heads)
    if key not in subject.jobs:
        job = self_job(*size, batch=batch, length=length, mask=mask, dtype=dtype)
        subject.jobs[key] = subject.fit(job)
    return subject.jobs[key]


def unmasked_job(
    subject: Subject, dtype: torch.dtype, *, batch: int = 2, length: int = LENGTH
) -> Job:
    """Return a self-attention job without a mask; causal if the subject is always causal."""
    job = masked_job(subject, dtype, batch=batch, length=length)
    return job if subject.refuses(job) is None else replace(job, mask=causal())


PADDED = padding([LENGTH, LENGTH - 3])  # padding at the end of sample 1


def random_pairs(seed: int) -> Mask:
    """Return a random asymmetric mask in which every token may attend to itself."""
    some = torch.rand(LENGTH, LENGTH, generator=torch.Generator().manual_seed(seed)) > 0.4
    some.fill_diagonal_(fill_value=True)
    return from_tensor(some, "q k")


def yes_or_no(good: bool) -> Verdict:
    """Return the verdict for a condition that is true or false."""
    return Verdict(good, float(not good), 0.0, float(not good), 0.0)


def expected(subject: Subject, job: Job, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the exact output: the oracle's, or the subject's own if there is no oracle."""
    return oracle(job, dtype)["output"] if subject.truth is None else subject.truth(job, dtype)


Part = tuple[slice | list[int], ...]  # an index of an output


def judge_expected(output: Tensor, subject: Subject, job: Job, part: Part = ()) -> Verdict:
    """Judge an output, or a part of it, by the expected output of the job."""
    plain, exact = (expected(subject, job, d)[part] for d in (job.query.dtype, torch.float64))
    return judge(output, plain, exact)


def compare(
    name: str, outcome: Outcome | None, subject: Subject, job: Job, part: Part = ()
) -> Iterator[Evidence]:
    """Judge the output of an outcome, unless it is None, by the expected output of the job."""
    if outcome is not None:
        yield name, judge_expected(outcome.output, subject, job, part)


def matches_expected(name: str, subject: Subject, job: Job) -> Iterator[Evidence]:
    """Compare the output with the expected output."""
    yield from compare(name, compute(subject, job), subject, job)


def matches_exact(subject: Subject, job: Job, exact: Tensor) -> Iterator[Evidence]:
    """Compare the output with exact numbers that were computed independently."""
    outcome = compute(subject, job)
    if outcome is not None:
        name = "self-attention" if job.alike else "cross-attention"
        yield name, judge(outcome.output, oracle(job, job.query.dtype)["output"], exact)
