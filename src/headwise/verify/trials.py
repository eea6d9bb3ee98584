"""What the checks of a whole module share: their jobs, and how a trial becomes evidence."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from headwise.masks import Mask, causal
from headwise.verify.budget import Verdict, judge
from headwise.verify.jobs import Job, self_job
from headwise.verify.judging import judge_job
from headwise.verify.oracle import oracle
from headwise.verify.subject import Evidence, Subject, compute

LENGTH = 7
"""How long the sequences of the contract are; another number than every other size."""


def own(
    subject: Subject,
    dtype: torch.dtype,
    mask: Mask | None = None,
    *,
    batch: int = 2,
    length: int = LENGTH,
) -> Job:
    """Self-attention of the subject's size, with the weights that it has."""
    size = {"batch": batch, "length": length}
    job = self_job(subject.embed_dim, subject.heads, mask=mask, dtype=dtype, **size)
    return subject.fit(job)


def offered(subject: Subject, dtype: torch.dtype, *, batch: int = 2, length: int = LENGTH) -> Job:
    """Self-attention without a mask; under a causal one where a subject hides the future itself."""
    job = own(subject, dtype, batch=batch, length=length)
    return job if subject.refuses(job) is None else replace(job, mask=causal())


def holds(good: bool) -> Verdict:
    """A yes or no as a verdict."""
    return Verdict(good, float(not good), 0.0, float(not good), 0.0)


def expected(subject: Subject, job: Job, dtype: torch.dtype = torch.float64) -> Tensor:
    """The output that is right: the oracle's, or where there is none the subject's own."""
    return oracle(job, dtype)["output"] if subject.truth is None else subject.truth(job, dtype)


def held(name: str, subject: Subject, job: Job) -> Iterator[Evidence]:
    """The output held against the oracle's."""
    outcome = compute(subject, job)
    if outcome is not None:
        yield name, judge_job(outcome, job)


def against(subject: Subject, job: Job, exact: Tensor) -> Iterator[Evidence]:
    """The output held against numbers found in another way."""
    outcome = compute(subject, job)
    if outcome is not None:
        name = "self-attention" if job.alike else "cross-attention"
        yield name, judge(outcome.output, oracle(job, job.query.dtype)["output"], exact)
