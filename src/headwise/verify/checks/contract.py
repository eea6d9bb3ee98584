"""The contract: the properties that a whole module with its projections must have."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from headwise.call import Call
from headwise.lang import Text
from headwise.masks import Mask, causal, full
from headwise.verify.checks import (
    LENGTH,
    PADDED,
    Check,
    Part,
    Subject,
    attempt,
    attend,
    compare,
    compute,
    expected,
    masked_job,
    matches_exact,
    matches_expected,
    random_pairs,
    unmasked_job,
    yes_or_no,
)
from headwise.verify.checks.edge_cases import EXTREMES
from headwise.verify.checks.metamorphic import METAMORPHIC
from headwise.verify.checks.special_cases import SPECIAL
from headwise.verify.oracle import oracle, torch_attention
from headwise.verify.oracle.jobs import Job, Outcome, Weights, cross_job, self_job
from headwise.verify.oracle.tolerance import Evidence, judge, judge_gradients

LARGE = 200.0  # a score whose exponential overflows in float32

MASKS: tuple[tuple[str, Mask], ...] = (
    ("no mask", full()),
    ("causal", causal()),
    ("some pairs", random_pairs(seed=2)),
    ("padding", PADDED),
)
"""The masks of the trials, by name; no mask has a fully masked row."""


def tried(subject: Subject) -> tuple[tuple[str, Mask], ...]:
    """Return the masks of the trials, and the subject's own mask unless it is one of them."""
    known = subject.base in [mask for _, mask in MASKS]
    return MASKS if known else (*MASKS, ("its own pattern", subject.base))


def jobs(subject: Subject, dtype: torch.dtype, seeds: tuple[int, ...] = (0,)) -> Iterator[Job]:
    """Yield self- and cross-attention jobs without a mask that the subject supports."""
    for seed in seeds:
        for make in (self_job, cross_job):
            job = subject.fit(make(subject.embed_dim, subject.heads, seed=seed, dtype=dtype))
            if subject.refuses(job) is None:
                yield job


def module_forward(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Compare outputs for several inputs and masks, in self- and cross-attention."""
    for job in jobs(subject, dtype, seeds=(0, 1)):
        yield from matches_expected("no mask" if job.alike else "cross-attention", subject, job)
    for name, mask in tried(subject)[1:]:
        yield from matches_expected(name, subject, masked_job(subject, dtype, mask=mask))


def _outcomes(
    subject: Subject, dtype: torch.dtype, named: Iterable[tuple[str, Mask]]
) -> Iterator[tuple[str, Job, Outcome]]:
    """Run self-attention under each mask that the subject supports."""
    for name, mask in named:
        job = masked_job(subject, dtype, mask=mask)
        outcome = compute(subject, job)
        if outcome is not None:
            yield name, job, outcome


def as_torch(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """The output equals that of `torch.nn.MultiheadAttention` with the same weights."""
    if subject.position is not None:
        return
    for name, job, outcome in _outcomes(subject, dtype, tried(subject)):
        plain = torch_attention(job).output
        yield name, judge(outcome.output, plain, oracle(job)["output"])


def module_gradients(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check the gradients of all inputs and weights, with and without a mask."""
    named = tried(subject)
    for name, mask in (*named[:2], *named[4:]):
        job = masked_job(subject, dtype, mask=mask).tracked()
        outcome = compute(subject, job)
        if outcome is not None:
            plain, exact = oracle(job, dtype)["output"], oracle(job)["output"]
            for leaf, verdict in judge_gradients(outcome.output, plain, exact, job.leaves()):
                yield f"{name}: {leaf}", verdict


def module_weights(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check the attention weights of each head, if the module returns them."""
    for name, job, outcome in _outcomes(subject, dtype, tried(subject)):
        if outcome.weights is not None:
            plain, exact = oracle(job, dtype)["weights"], oracle(job)["weights"]
            yield name, judge(outcome.weights, plain, exact)


def projection_closed_form(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """With zero queries, the output is the output projection of the mean of x Wᵀ + b."""
    if subject.position is not None:
        return
    for job in jobs(subject, dtype):
        job = replace(job, weights=job.weights.map(torch.zeros_like, "q"))
        yield from matches_exact(subject, job, _mean_of_values(job))


def output_projection(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """With zero values, the output is W^O times the bias of v, plus the output bias."""
    for job in jobs(subject, dtype):
        w = replace(job.weights, v=torch.zeros_like(job.weights.v))
        job, w = replace(job, weights=w), w.spread(job.heads, job.groups)
        constant = job.value.new_zeros(1, 1, w.v.shape[0]) if w.v_bias is None else w.v_bias
        exact = _through_output(w, constant.double().expand(1, 1, -1))
        yield from matches_exact(subject, job, exact.expand(*job.query.shape[:2], -1))


def projections_in_order(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Zero keys give the mean of the values; constant queries do not."""
    if subject.position is not None:
        return
    for job in jobs(subject, dtype):
        w = job.weights
        silent = replace(job, weights=w.map(torch.zeros_like, "k"))
        yield from matches_exact(subject, silent, _mean_of_values(silent))
        constant = replace(job, weights=replace(w, q=torch.zeros_like(w.q)))
        yield from matches_expected("queries that are their bias", subject, constant)


def heads_are_slices(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """The output is the sum of single heads, each through its own slice of W^O."""
    if subject.position is not None:
        return
    for job in jobs(subject, dtype):
        yield from matches_exact(subject, job, _sum_of_heads(job.to(torch.float64)))


def mask_arguments(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check the output for every mask argument, with the mask in that argument only."""
    ways = (("mask", partial(compute, subject)),) if subject.ways is None else subject.ways
    for argument, way in ways:
        for name, mask in MASKS[1:]:
            job = masked_job(subject, dtype, mask=mask)
            yield from compare(f"{argument}: {name}", way(job), subject, job)


def masks_together(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check the output under two masks, given in one argument and in two arguments."""
    job = masked_job(subject, dtype, causal() & PADDED)
    yield from matches_expected("causal and padding", subject, job)
    outcome = None if subject.together is None else subject.together(job)
    yield from compare("causal in one argument, padding in another", outcome, subject, job)


def large_scores(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Equal tokens with scores of at least 200 give their common value."""
    job = masked_job(subject, dtype)
    w = job.weights
    if (w.q_bias is None) != (w.k_bias is None):
        return
    rows = w.k.shape[0] // job.groups
    first = w.map(lambda t: t[:rows].repeat(job.groups, *[1] * (t.dim() - 1)), "k")
    alike = replace(job.with_input(job.query[:1]), weights=first)
    for name, quiet in (("the same in every head", alike), ("another in each head", job)):
        loud, exact = _loud(quiet, dtype)
        outcome = compute(subject, loud)
        if outcome is not None:
            yield name, judge(outcome.output, oracle(loud, dtype)["output"], exact)


def loud_job(job: Job, dtype: torch.dtype) -> Job:
    """A job of equal tokens whose queries are scaled-up keys: every score is 200 and more."""
    return _loud(job, dtype)[0]


def _loud(job: Job, dtype: torch.dtype) -> tuple[Job, Tensor]:
    """Return a job of equal tokens whose queries are scaled keys, and its exact output."""
    x, w = job.query[:, :1].expand_as(job.query).contiguous(), job.weights
    keys = w.spread(job.heads, job.groups)  # one key per head; the query must be equal to it
    k = _times(x, keys.k, keys.k_bias).reshape(*x.shape[:2], job.heads, -1)
    least = k.square().sum(-1).min() * k.shape[-1] ** -0.5
    factor = (LARGE / least).sqrt().to(dtype)
    q_bias, k_bias = (None if b is None else b * factor for b in (keys.k_bias, w.k_bias))
    loud = replace(w, q=keys.k * factor, k=w.k * factor, q_bias=q_bias, k_bias=k_bias)
    exact = _through_output(w, _times(x, keys.v, keys.v_bias))
    return replace(job.with_input(x), weights=loud), exact


def inputs_unchanged(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check that the inputs are not modified."""
    for job in jobs(subject, dtype):
        outcome = compute(subject, job)
        if outcome is not None:
            yield ", ".join(outcome.wrote) or "inputs", yes_or_no(not outcome.wrote)
    for mask in (causal(), PADDED & subject.base):
        outcome = compute(subject, masked_job(subject, dtype, mask))
        if outcome is not None and mask != subject.base:
            yield f"mask: {', '.join(outcome.wrote)}", yes_or_no(not outcome.wrote)
    generator = torch.Generator().manual_seed(4)
    qkv = [torch.randn(2, 3, n, 11, generator=generator).to(dtype) for n in (5, 7, 7)]
    before = [tensor.clone() for tensor in qkv]
    if attend(subject, Call.of(*qkv)) is not None:
        for name, old, new in zip("qkv", before, qkv, strict=True):
            yield name, yes_or_no(torch.equal(old, new))


def eval_without_dropout(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """In evaluation mode, a module with dropout gives the output without dropout."""
    job = replace(masked_job(subject, dtype), dropout=0.5)
    yield from matches_expected("eval", subject, job)


def _times(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = torch.einsum("ble,oe->blo", x.double(), weight.double())
    return product if bias is None else product + bias.double()


def _mean_of_values(job: Job) -> Tensor:
    """Return the exact output if every query gives all keys the same weight."""
    w = job.weights.spread(job.heads, job.groups)
    values = _times(job.value, w.v, w.v_bias).mean(1, keepdim=True)
    return _through_output(w, values).expand(-1, job.query.shape[1], -1)


def _through_output(w: Weights, merged: Tensor) -> Tensor:
    """Apply the output projection to merged heads in float64."""
    return merged if w.out is None else _times(merged, w.out, w.out_bias)


def _sum_of_heads(job: Job) -> Tensor:
    """Sum the single-head attentions, projected by their slices of W^O, in float64."""
    w, total = job.weights.spread(job.heads, job.groups), torch.zeros(())
    out = torch.eye(w.q.shape[0], dtype=torch.float64) if w.out is None else w.out
    for start in range(0, w.q.shape[0], job.head_dim):
        rows = slice(start, start + job.head_dim)
        named = {n: t[rows] for n, t in w.named().items() if n[0] in "qkv"}
        single = replace(w, **named, out=out[:, rows], out_bias=None)
        total = total + oracle(replace(job, weights=single, heads=1, groups=1))["output"]
    return total if w.out_bias is None else total + w.out_bias


CONTRACT: tuple[Check, ...] = (
    Check.of(module_forward, Text("outputs equal the oracle")),
    Check.of(as_torch, Text("outputs equal torch.nn.MultiheadAttention")),
    Check.of(module_gradients, Text("gradients of inputs and weights equal the oracle's")),
    Check.of(module_weights, Text("the weights of each head equal the oracle's")),
    Check.of(projection_closed_form, Text("equal scores give the mean of x Wᵀ + b")),
    Check.of(output_projection, Text("the output projection is applied")),
    Check.of(projections_in_order, Text("keys of zeros give the mean of the values")),
    Check.of(heads_are_slices, Text("heads are slices, summed through W^O")),
    Check.of(mask_arguments, Text("each mask argument hides what it should")),
    Check.of(masks_together, Text("two masks at once hide what either hides")),
    Check.of(large_scores, Text("scores of 200 do not overflow")),
    Check.of(inputs_unchanged, Text("its inputs are not modified")),
    Check.of(eval_without_dropout, Text("no dropout in eval")),
    *METAMORPHIC,
    *EXTREMES,
    *SPECIAL,
)


TIMES = 37  # how often a short sequence is repeated; a prime, unlike block sizes


def _one_token_of_two(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """One token gives the output of two equal tokens; one sample gives its output in a batch."""
    pair = masked_job(subject, dtype, length=2)
    pair = pair.with_input(pair.query[:, :1].expand_as(pair.query).contiguous())
    yield from _alone("L = 1", subject, pair, (slice(None), slice(0, 1)))
    yield from _alone("B = 1", subject, unmasked_job(subject, dtype), (slice(0, 1), slice(None)))


def _repeated_sequence(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """A repeated sequence gives repeated outputs; under a causal mask, the first period is equal.

    The copies of a key share the weight of the single key. No trial runs if the target raises.
    """
    for name, mask, periods in (("", full(), TIMES), (", causal", causal(), 1)):
        job = masked_job(subject, dtype, mask)
        outcome = attempt(subject, job.with_input(job.query.repeat(1, TIMES, 1)))
        if outcome is not None:
            plain, exact = (
                expected(subject, job, d).repeat(1, periods, 1) for d in (dtype, torch.float64)
            )
            result = outcome.output[:, : LENGTH * periods]
            yield f"L = {LENGTH * TIMES}{name}", judge(result, plain, exact)


def _eval_as_without_dropout(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    job = unmasked_job(subject, dtype)
    yield from compare("eval", compute(subject, replace(job, dropout=0.5)), subject, job)


def _alone(name: str, subject: Subject, job: Job, part: Part) -> Iterator[Evidence]:
    if compute(subject, job) is not None:
        outcome = compute(subject, job.with_input(job.query[part]))
        yield from compare(name, outcome, subject, job, part)


_WITHOUT_ORACLE = {
    "smallest_sizes": _one_token_of_two,
    "long_sequence": _repeated_sequence,
    "eval_without_dropout": _eval_as_without_dropout,
}
"""The probes of checks that differ if there is no oracle."""

_UNCHANGED = ("non_contiguous", "dtype_kept", "inputs_unchanged")

BLACK_BOX: tuple[Check, ...] = (
    *METAMORPHIC,
    *(check for check in CONTRACT if check.name in _UNCHANGED),
    *(replace(c, probe=_WITHOUT_ORACLE[c.name]) for c in CONTRACT if c.name in _WITHOUT_ORACLE),
)
"""The checks of a target whose weights are not known."""

ANY_FUNCTION: tuple[Check, ...] = tuple(
    check
    for check in BLACK_BOX
    if check.name not in ("smallest_sizes", "long_sequence", "permutation_equivariant")
)
"""The checks of a target that is more than the definition of attention."""
