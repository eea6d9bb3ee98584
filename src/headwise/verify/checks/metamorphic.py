"""Metamorphic checks: how the output must respond to a change of the input.

These checks do not need the weights of the target. The output is compared with the oracle's or, if
there is no oracle, with the target's own float64 output for the unchanged input.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.masks import causal, full, padding
from headwise.verify.checks import (
    LENGTH,
    PADDED,
    Check,
    Subject,
    attempt,
    compare,
    compute,
    judge_expected,
    masked_job,
    unmasked_job,
    yes_or_no,
)
from headwise.verify.oracle.jobs import Job, Outcome, cross_job
from headwise.verify.oracle.tolerance import Evidence, Verdict, judge

REAL = LENGTH - 3  # the number of real tokens in the padded sample
ORDER = (2, 0, 5, 6, 1, 3, 4)  # a permutation without a fixed point


def batch_independent(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Changing sample 1 does not change sample 0."""
    job = unmasked_job(subject, dtype)
    x = torch.cat((job.query[:1], -job.query[1:]))
    yield from _unchanged("sample 0", subject, job, x, (slice(0, 1),))


def causal_leak(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Under a causal mask, changing the last token does not change earlier outputs."""
    job = masked_job(subject, dtype, causal())
    x = torch.cat((job.query[:, :-1], -job.query[:, -1:]), dim=1)
    before = (slice(None), slice(0, -1))
    yield from _unchanged("tokens before the last", subject, job, x, before)


def padding_leak(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Changing a padded token of sample 1 does not change the outputs of its real tokens."""
    job = masked_job(subject, dtype, PADDED)
    x = job.query.clone()
    x[1, REAL:] = -x[1, REAL:] + 1.0
    yield from _unchanged("real tokens", subject, job, x, (slice(1, 2), slice(0, REAL)))


def blind_rows_alone(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """A fully padded sample does not affect the other sample."""
    job = masked_job(subject, dtype, padding([LENGTH, 0]))
    outcome = attempt(subject, job)  # a target may raise for a sample without real tokens
    if outcome is not None:
        beside = replace(job, mask=padding([LENGTH, LENGTH - 1]))
        first = (slice(0, 1),)
        yield "the sample beside it", judge_expected(outcome.output[first], subject, beside, first)


def permutation_equivariant(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Without a mask, permuted tokens give permuted outputs."""
    if subject.position is not None:
        return
    job, order = masked_job(subject, dtype), (slice(None), list(ORDER))
    outcome = compute(subject, job.with_input(job.query[order]))
    yield from compare("tokens in another order", outcome, subject, job, order)
    crossing = cross_job(subject.embed_dim, subject.heads, dtype=dtype)
    crossing = subject.fit(replace(crossing, value=crossing.key))
    keys = crossing.key[order]
    outcome = compute(subject, replace(crossing, key=keys, value=keys))
    yield from compare("keys in another order", outcome, subject, crossing)


def deterministic(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """In evaluation mode, equal inputs give bitwise equal outputs, also after another input."""
    for mask in (full(), causal()):
        job = masked_job(subject, dtype, mask)
        other = masked_job(subject, dtype, mask, length=LENGTH - 2)
        first = compute(subject, job)
        if first is None:
            continue
        second = compute(subject, replace(job, rng_seed=1))
        yield "twice the same input", yes_or_no(_same(first, second))
        compute(subject, other.with_input(-other.query))
        third = compute(subject, replace(job, rng_seed=2))
        yield "after another input", yes_or_no(_same(first, third))


def weights_sum_to_one(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Returned attention weights sum to 1 over the keys and are 0 for masked keys."""
    for name, mask in (("no mask", full()), ("causal", causal()), ("padding", PADDED)):
        job = masked_job(subject, dtype, mask)
        outcome = compute(subject, job)
        if outcome is None or outcome.weights is None:
            continue
        sums = outcome.weights.double().sum(-1)
        ones = torch.ones_like(sums)
        yield f"{name}: sums", judge(sums.to(dtype), ones.to(dtype), ones)
        hidden = ~job.mask.dense(job.shape).expand_as(outcome.weights)
        if bool(hidden.any()):
            yield f"{name}: hidden keys", _nothing(outcome.weights[hidden], outcome.weights)


def masked_gradients(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """No gradient reaches a masked token, and every gradient is finite."""
    padded = masked_job(subject, dtype, PADDED).tracked()
    yield from _hidden("padding", subject, padded, (1, slice(0, REAL)), (1, slice(REAL, None)))
    future = masked_job(subject, dtype, causal()).tracked()
    seen, unseen = (slice(None), slice(0, REAL)), (slice(None), slice(REAL, None))
    yield from _hidden("causal", subject, future, seen, unseen)
    yield from _beside_blind(subject, masked_job(subject, dtype, padding([LENGTH, 0])).tracked())


def _unchanged(
    name: str, subject: Subject, job: Job, x: Tensor, part: tuple[slice, ...]
) -> Iterator[Evidence]:
    """Check that a part of the output is the same as before a change of the input."""
    outcome = compute(subject, job.with_input(x))
    if outcome is not None:
        yield name, judge_expected(outcome.output[part], subject, job, part)


def _same(first: Outcome, second: Outcome | None) -> bool:
    if second is None:
        return False
    a, b = first.output, second.output
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _nothing(part: Tensor, of: Tensor) -> Verdict:
    """Check that a part of a tensor is 0, up to rounding relative to the whole tensor."""
    anchor = of.detach().abs().max().reshape(1)
    result, zeros = (torch.cat((x.detach().flatten(), anchor)) for x in (part, part * 0))
    return judge(result, zeros, zeros.double())


Tokens = tuple[slice | int, slice]


def _hidden(
    name: str, subject: Subject, job: Job, outputs: Tokens, unseen: Tokens
) -> Iterator[Evidence]:
    """Check that the gradient of outputs with respect to tokens masked for them is 0."""
    outcome = compute(subject, job)
    if outcome is None or not outcome.output.requires_grad:
        return
    (gradient,) = torch.autograd.grad(outcome.output[outputs].square().sum(), job.query)
    yield f"{name}: hidden tokens", _nothing(gradient[unseen], gradient)


def _beside_blind(subject: Subject, job: Job) -> Iterator[Evidence]:
    """Check that the gradient is finite if the output of a fully masked row is finite."""
    outcome = attempt(subject, job)
    if outcome is None or not outcome.output.requires_grad:
        return
    if not bool(outcome.output.isfinite().all()):
        return  # a target may give NaN for a fully masked row; this gives a note
    leaves = {"input": job.query} if subject.truth else job.leaves()
    total = outcome.output.square().sum()
    gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        good = gradient is None or bool(gradient.isfinite().all())
        yield f"a query that sees nothing: {leaf}", yes_or_no(good)


METAMORPHIC: tuple[Check, ...] = (
    Check.of(batch_independent, Text("a sample does not see the others")),
    Check.of(causal_leak, Text("causal: no future leak")),
    Check.of(padding_leak, Text("padding does not leak")),
    Check.of(blind_rows_alone, Text("a fully padded sample does not affect the others")),
    Check.of(permutation_equivariant, Text("permuted tokens give permuted outputs")),
    Check.of(deterministic, Text("in eval the same input gives bitwise equal outputs")),
    Check.of(weights_sum_to_one, Text("returned weights sum to 1 and are 0 on masked keys")),
    Check.of(masked_gradients, Text("no gradient reaches a hidden token; all are finite")),
)
