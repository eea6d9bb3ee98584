"""What is held against the oracle, and what a check says about it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.lang import Text
from headwise.masks import Mask, full
from headwise.positions import Stage
from headwise.verify.budget import Verdict
from headwise.verify.jobs import Job
from headwise.verify.pipeline import Pipeline


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a module gave.

    Attributes:
        output: (B, Lq, E).
        weights: (B, H, Lq, Lk) where it gives one matrix a head, or None.
        wrote: the names of the inputs that it wrote into.
    """

    output: Tensor
    weights: Tensor | None = None
    wrote: tuple[str, ...] = ()


def _accepts(what: Call | Job) -> Text | None:
    del what
    return None


Ways = tuple[tuple[str, Callable[[Job], Outcome | None]], ...]
"""For each mask argument its name, and the module with masks given there and nowhere else."""


@dataclass(frozen=True)
class Subject:
    """An implementation under test.

    Attributes:
        name: how a person calls it.
        attend: the attention alone, or None where it cannot be reached.
        module: the attention with its projections, or None where it has none.
        refuses: why a call or a job is outside of what it offers, or None where it is inside.
        embed_dim: E of the jobs it is given.
        heads: H of the jobs it is given.
        lacks: the weights it does not have, such as "q_bias"; its jobs come without them.
        ways: its mask arguments one by one; None where it takes masks in no argument.
        groups: G of the jobs it is given, the key/value heads; None for as many as heads.
        base: what it hides when it is given no mask.
        together: the module with the two sides of a mask ``a & b`` in two arguments, or None.
        truth: the output that a job should have, in a dtype, where its weights are not known and
            there is no oracle: what the subject itself gives in that dtype.
    """

    name: str
    attend: Callable[[Call], Result] | None = None
    module: Callable[[Job], Outcome] | None = None
    refuses: Callable[[Call | Job], Text | None] = _accepts
    embed_dim: int = 15
    heads: int = 3
    lacks: frozenset[str] = frozenset()
    ways: Ways | None = None
    groups: int | None = None
    together: Callable[[Job], Outcome | None] | None = None
    base: Mask = field(default_factory=full)
    truth: Callable[[Job, torch.dtype], Tensor] | None = None

    def fit(self, job: Job) -> Job:
        """A job with the weights that the subject has."""
        return job.fitted(self.lacks, self.groups)


Evidence = tuple[str, Verdict]
"""One thing that was tried, and how it was judged."""

Probe = Callable[[Subject, torch.dtype], Iterator[Evidence]]


@dataclass(frozen=True)
class Check:
    """One question that is put to a subject.

    Attributes:
        name: its name, which mistakes refer to.
        question: what must hold.
        probe: the trials, one after the other.
    """

    name: str
    question: Text
    probe: Probe


def of_pipeline(name: str, pipeline: Pipeline) -> Subject:
    """A pipeline, right or with mistakes, as a subject."""

    def module(job: Job) -> Outcome:
        trace = pipeline.run(job)
        return Outcome(trace["output"], trace["weights"])

    return Subject(name, attend=pipeline.attend, module=module, refuses=_positions)


def _positions(what: Call | Job) -> Text | None:
    """The pipeline has no step for a position."""
    if isinstance(what, Call) and what.position.stages - {Stage.INPUT}:
        return Text("it has no position")
    return None


def attend(subject: Subject, call: Call) -> Result | None:
    """What the subject gives, or None where it does not offer this call."""
    if subject.attend is None or subject.refuses(call) is not None:
        return None
    return subject.attend(call)


def compute(subject: Subject, job: Job) -> Outcome | None:
    """What the subject's module gives, or None where it does not offer this job."""
    if subject.module is None or subject.refuses(job) is not None:
        return None
    return subject.module(job)
