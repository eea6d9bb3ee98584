"""Checks of edge cases: sizes, memory layouts, dtypes, and `torch.compile`."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.masks import causal, full, padding
from headwise.verify.checks import (
    Check,
    Subject,
    attempt,
    compute,
    judge_expected,
    masked_job,
    matches_expected,
    unmasked_job,
    yes_or_no,
)
from headwise.verify.oracle import oracle
from headwise.verify.oracle.jobs import Job, Outcome, cross_job, self_job
from headwise.verify.oracle.tolerance import Evidence, judge_gradients, judge_job

LONG = (257, 129, 64)
"""One more than two common block sizes, and the length given to constructors that require a length.
The first length at which the target does not raise is used, as many targets limit the length."""

DTYPES = (torch.float64, torch.bfloat16, torch.float16)

HALF = (torch.bfloat16, torch.float16)


def smallest_sizes(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check the output for one token, one sample and one query."""
    for name, job in _small(subject, dtype):
        yield from matches_expected(name, subject, job)


def long_sequence(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check the output for a sequence longer than usual block sizes of attention kernels."""
    for name, job in _long(subject, dtype):
        yield from matches_expected(name, subject, job)


def non_contiguous(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check the output for non-contiguous inputs.

    A target may raise, as `view` does; this gives a note instead of a failure.
    """
    for name, job in _strided(subject, dtype):
        if attempt(subject, job) is not None:
            yield from matches_expected(name, subject, job)


def dtype_kept(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check that the output has the dtype of the input and is accurate in half precision.

    A target that raises does not support the dtype; this gives a note instead of a failure.
    """
    for other in (dtype, *DTYPES):
        job = unmasked_job(subject, other)
        outcome = attempt(subject, job)
        if outcome is None:
            continue
        kept = outcome.output.dtype == other
        yield f"{_word(other)} gives {_word(outcome.output.dtype)}", yes_or_no(kept)
        if kept and other in HALF:
            yield f"{_word(other)}: output", judge_expected(outcome.output, subject, job)


def refusals(subject: Subject, dtype: torch.dtype) -> Iterator[Text]:
    """Yield a note for every edge case in which the target raises."""
    job = unmasked_job(subject, dtype, batch=1, length=LONG[0])
    message = _refused(subject, job)
    if message:
        yield Text("a sequence of {length} tokens: {error}", length=LONG[0], error=message)
    for name, job in _strided(subject, dtype):
        message = _refused(subject, job)
        if message:
            yield Text(
                "an input that is not contiguous ({name}): {error}", name=name, error=message
            )
            break
    for other in DTYPES:
        message = _refused(subject, unmasked_job(subject, other))
        if message:
            yield Text("{dtype}: {error}", dtype=_word(other), error=message)


def edge_case_jobs(subject: Subject, dtype: torch.dtype, failed: set[str]) -> Iterator[Job]:
    """Yield the jobs of the failed edge-case checks for the diagnosis."""
    for name, jobs in _JOBS.items():
        if name in failed:
            yield from (job for _, job in jobs(subject, dtype))


Named = Iterator[tuple[str, Job]]


def _small(subject: Subject, dtype: torch.dtype) -> Named:
    sizes = (("L = 1", 2, 1), ("B = 1", 1, 7), ("B = 1, L = 1", 1, 1))
    for name, batch, length in sizes:
        yield name, unmasked_job(subject, dtype, batch=batch, length=length)
    for lengths in ((1, 7), (5, 1)):
        job = cross_job(subject.embed_dim, subject.heads, lengths=lengths, dtype=dtype)
        yield f"Lq = {lengths[0]}, Lk = {lengths[1]}", subject.fit(replace(job, value=job.key))


def _long(subject: Subject, dtype: torch.dtype) -> Named:
    for name, mask in (("", full()), (", causal", causal())):
        for length in LONG:
            job = masked_job(subject, dtype, mask, batch=1, length=length)
            if attempt(subject, job) is not None:
                yield f"L = {length}{name}", job
                break


def _strided(subject: Subject, dtype: torch.dtype) -> Named:
    job = unmasked_job(subject, dtype)
    for name, change in LAYOUTS:
        yield name, job.with_input(change(job.query))


LAYOUTS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("length first in memory", lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)),
    ("every second number in memory", lambda x: torch.stack((x, x + 1.0), dim=-1)[..., 0]),
    ("one sample, expanded", lambda x: x[:1].expand_as(x)),
)
"""Memory layouts that are not contiguous."""

_JOBS = {"smallest_sizes": _small, "long_sequence": _long, "non_contiguous": _strided}


def _refused(subject: Subject, job: Job) -> str:
    """Return the error that the subject raises for a job in one line; empty if none."""
    try:
        compute(replace(subject, may_raise=False), job)
    except Exception as error:
        return "raises " + " ".join(f"{type(error).__name__}: {error}".split())[:160]
    return ""


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


EXTREMES: tuple[Check, ...] = (
    Check.of(smallest_sizes, Text("one token, one sample, one query")),
    Check.of(long_sequence, Text("a long sequence gives the right numbers")),
    Check.of(non_contiguous, Text("inputs may lie in memory in any order")),
    Check.of(dtype_kept, Text("the output has the dtype of the input")),
)


COMPILED_LENGTHS = (7, 11)
"""The sequence lengths; the second shows whether the code was specialised to the first."""


def compiled_equals(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check the outputs and gradients of the compiled target, at two lengths and with masks."""
    for length in COMPILED_LENGTHS:
        size = subject.embed_dim, subject.heads
        own = subject.fit(self_job(*size, length=length, mask=subject.base, dtype=dtype))
        masks = (("no mask", full()), ("causal", causal()), ("padding", padding([length, 4])))
        for name, mask in masks:
            job = replace(own, mask=mask)
            outcome = _quietly(subject, job)
            if outcome is not None:
                yield f"L={length}, {name}", judge_job(outcome, job)
        yield from _compiled_gradients(subject, own.tracked())


def _quietly(subject: Subject, job: Job) -> Outcome | None:
    """Compute the outcome without the compiler's warning about replaced parameters."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        return compute(subject, job)


def _compiled_gradients(subject: Subject, job: Job) -> Iterator[Evidence]:
    outcome = _quietly(subject, job)
    if outcome is not None:
        plain, exact = oracle(job, job.query.dtype)["output"], oracle(job)["output"]
        judged = judge_gradients(outcome.output, plain, exact, job.leaves(), again=False)
        for leaf, verdict in judged:
            yield f"gradient of {leaf}", verdict


COMPILED = Check.of(compiled_equals, Text("torch.compile gives the same"))
