"""Checks of what one ordinary call does not show: positions, sizes, state, unused weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.lang import Text
from headwise.masks import causal, padding
from headwise.positions import ALiBi, Position, Rotary
from headwise.verify.checks import (
    LENGTH,
    PADDED,
    Check,
    Subject,
    compute,
    masked_job,
    matches_expected,
    unmasked_job,
    yes_or_no,
)
from headwise.verify.oracle import oracle
from headwise.verify.oracle.jobs import Job, self_job
from headwise.verify.oracle.tolerance import Evidence, judge_job

OTHER_SIZES = ((14, 2), (28, 4), (32, 2), (24, 2), (48, 4))
"""E and H beside those of the subject; the first at which it can be constructed is used."""

POSITIONED = (12, 3)  # E and H of the jobs with positions, since a rotary position needs an even D


def positions(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """With rotary positions and with a bias of distance, the outputs equal the oracle."""
    if subject.position is not None:
        yield from matches_expected("its own positions", subject, masked_job(subject, dtype))
    if not subject.any_position or subject.module is None:
        return
    embed_dim, heads = POSITIONED
    dim = embed_dim // heads
    every: tuple[Position, ...] = (
        Rotary(dim, pairs="halves"),
        Rotary(dim, pairs="neighbours"),
        ALiBi(heads),
    )
    for position in every:
        job = replace(self_job(embed_dim, heads, dtype=dtype), position=position)
        outcome = subject.module(job)
        if outcome is not None:
            yield type(position).__name__, judge_job(outcome, job)


def another_size(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """At another E, H and D the outputs equal the oracle too."""
    own = subject.embed_dim // subject.heads
    for embed_dim, heads in OTHER_SIZES:
        if embed_dim // heads == own or subject.resized is None:
            continue
        other = subject.resized(embed_dim, heads)
        if other is None:
            continue
        job = unmasked_job(other, dtype)
        if compute(other, job) is not None:
            yield from matches_expected(f"E = {embed_dim}, H = {heads}", other, job)
            return


def large_scores_masked(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Hidden keys stay hidden where every visible score is -200 and less."""
    from headwise.verify.checks.contract import loud_job

    for name, mask in (("padding", PADDED & subject.base), ("causal", causal())):
        quiet = masked_job(subject, dtype, mask)
        w = quiet.weights
        if (w.q_bias is None) != (w.k_bias is None) or subject.refuses(quiet) is not None:
            continue
        loud = loud_job(quiet, dtype)
        first, last = quiet.query[:, :1], quiet.query[:, -1:]
        hidden = LENGTH - 3
        x = torch.cat((first.expand(-1, hidden, -1), last.expand(-1, 3, -1)), 1).contiguous()
        job = replace(loud.with_input(x), weights=loud.weights.map(torch.neg, "q"))
        part = (
            (slice(1, 2), slice(0, hidden))
            if name == "padding"
            else (slice(None), slice(0, hidden))
        )
        outcome = compute(subject, job)
        if outcome is not None:
            seen = replace(outcome, output=outcome.output[part])
            yield name, _judge_part(seen.output, job, part)


def _judge_part(output: Tensor, job: Job, part: tuple[slice, ...]) -> Any:
    from headwise.verify.oracle.tolerance import judge

    plain, exact = (oracle(job, d)["output"][part] for d in (job.query.dtype, torch.float64))
    return judge(output, plain, exact)


def numbers_only(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Where every query sees a key, no output is NaN."""
    outcome = compute(subject, unmasked_job(subject, dtype))
    if outcome is not None:
        yield "no mask", yes_or_no(not bool(outcome.output.isnan().any()))


def parameters_used(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Other weights give another output; the bias of the keys has no effect by definition."""
    job = unmasked_job(subject, dtype)
    before = compute(subject, job)
    if before is None or bool(before.output.isnan().any()):
        return
    for name, weight in job.weights.named().items():
        if name == "k_bias":
            continue
        weights = replace(job.weights, **{name: weight.roll(1, 0) * 0.5 - 0.25})
        after = compute(subject, replace(job, weights=weights))
        if after is not None:
            yield name, yes_or_no(not torch.equal(before.output, after.output))
    for name in () if subject.unused is None else subject.unused():
        yield f"parameter {name}", yes_or_no(good=False)


def mask_of_one_call(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """After a call with a mask, a call without one gives the output without a mask."""
    for name, mask in (("causal", causal()), ("padding", PADDED & subject.base)):
        if compute(subject, masked_job(subject, dtype, mask)) is not None:
            yield from matches_expected(f"after {name}", subject, unmasked_job(subject, dtype))


def cache_jobs(subject: Subject, dtype: torch.dtype) -> Iterator[Job]:
    """The last queries of a sequence whose other keys are in a cache."""
    mask = causal() if subject.any_position else subject.base
    whole = masked_job(subject, dtype, mask)
    for queries in (3, 1):
        yield replace(whole, query=whole.query[:, -queries:])


def cache_continues(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Tokens after a cache get the output that they have in the whole sequence."""
    for job in cache_jobs(subject, dtype):
        outcome = None if subject.cached is None else subject.cached(job)
        if outcome is not None:
            yield f"{job.query.shape[1]} after a cache", judge_job(outcome, job)


class NaNTimesZero(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether NaN is multiplied by 0, by which code means to clear it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if "aten.mul" in str(func) and len(args) == 2:
            for one, other in (args, args[::-1]):
                if isinstance(one, Tensor) and one.is_floating_point() and bool(one.isnan().any()):
                    self.found = self.found or bool((one.isnan() & (other == 0)).any())
        return result


def blind_rows_cleared(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Where NaN weights of a query that sees no key are multiplied by 0, none is left."""
    job = masked_job(subject, dtype, padding([LENGTH, 0]) & subject.base)
    if subject.module is None or subject.refuses(job) is not None:
        return
    with NaNTimesZero() as mode:
        outcome = compute(subject, job)
    if outcome is not None:
        left = mode.found and bool(outcome.output.isnan().any())
        yield "a sample of padding", yes_or_no(not left)


SPECIAL: tuple[Check, ...] = (
    Check.of(positions, Text("outputs with positions equal the oracle")),
    Check.of(another_size, Text("outputs at another size equal the oracle")),
    Check.of(large_scores_masked, Text("hidden keys stay hidden among scores of -200")),
    Check.of(numbers_only, Text("no output is NaN where every query sees a key")),
    Check.of(parameters_used, Text("every weight has an effect")),
    Check.of(mask_of_one_call, Text("a mask acts on its own call only")),
    Check.of(cache_continues, Text("tokens after a cache get the output of the whole sequence")),
    Check.of(blind_rows_cleared, Text("NaN of fully masked rows is not multiplied by 0")),
)
