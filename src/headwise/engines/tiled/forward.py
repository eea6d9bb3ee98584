"""The output and the logsumexp, part by part."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines import kernel
from headwise.engines.dropout import drops
from headwise.engines.statistics import apply_sinks
from headwise.engines.tiled import batched_kernel
from headwise.engines.tiled.parts import Part, StridedRows
from headwise.engines.tiled.problem import (
    NEAR,
    Problem,
    finite,
    keys_values,
    region_parts,
    zero_masked_kv,
)
from headwise.engines.tiled.scores import (
    ScoreTerms,
    position_biases,
    same_for_all_blocks,
    score_terms,
    values,
)
from headwise.positions import Stage
from headwise.shapes import AttentionShape

SIDE = 64
"""Rows of a block of queries."""

SCORES = 1 << 22
"""Scores that may be written out at once, over all samples and heads."""

MOVING = 1 << 21
"""The same where a position computes a bias for them."""

DROPPED = 1 << 19
"""Pairs whose dropout is computed at once: few enough for a cache."""

ROWS = 1 << 21
"""Numbers of the output that one kernel call gives."""


def forward(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output (B, H, Lq, Dv) and logsumexp (B, H, Lq), -inf on a fully masked row without a sink."""
    output, logsumexp = _run(problem)
    if not finite(output):  # perhaps because of a fully masked key
        output, logsumexp = _run(zero_masked_kv(problem))
    return output, logsumexp


def _run(problem: Problem) -> tuple[Tensor, Tensor]:
    shape, wide = problem.q.shape[:3], softmax_dtype(problem.q.dtype)
    plan = region_parts(problem, SIDE)
    merges = any(part.layer for part in plan)
    output = problem.v.new_empty(
        *shape, problem.v.shape[3], dtype=wide if merges else problem.v.dtype
    )
    logsumexp = problem.q.new_empty(*shape, 1, dtype=wide)
    if not covers(plan, problem.shape):
        output.zero_()
        logsumexp.fill_(-torch.inf)
    for part in plan:
        for chunk, extra in chunks_with_terms(problem, part, max_pairs(problem, part)):
            _merge(output, logsumexp, chunk, _results(problem, chunk, extra))
            del extra  # before the next is made
    sums = logsumexp[..., 0]
    if problem.sinks is not None:
        output, sums = apply_sinks(output, sums, problem.sinks)
    return output.to(problem.v.dtype), sums


def covers(plan: Sequence[Part], shape: AttentionShape) -> bool:
    """Whether the first layer writes every query."""
    rows = sum(part.queries.count * part.queries.size for part in plan if not part.layer)
    return rows == shape.queries


def chunks_with_terms(
    problem: Problem, part: Part, limit: int
) -> Iterator[tuple[Part, ScoreTerms]]:
    """The chunks of a part with their score terms, computed once where all are the same."""
    once = None
    if same_for_all_blocks(problem, part) and part.queries.size * part.keys.size <= limit:
        once = score_terms(problem, part.blocks(0, 1), part.queries.take(problem.raw_queries))
    for chunk in part.chunks(limit):
        yield chunk, once or score_terms(problem, chunk, chunk.queries.take(problem.raw_queries))


def max_pairs(problem: Problem, part: Part, numbers: int = ROWS) -> int:
    """How many pairs of a part to compute at once, for O(L) memory.

    Args:
        problem: the attention.
        part: of it.
        numbers: of the output that one kernel call may give.
    """
    heads = problem.shape.batch * problem.shape.heads
    rows = max(1, numbers // (heads * problem.v.shape[3])) * part.keys.size
    if drops(problem.mask):
        return max(1, min(DROPPED // heads, rows))
    known = kernel.fused(problem.q) and not problem.mask.biased
    written = not known or position_biases(problem, part) or needs_weights(problem, part)
    if written:
        return max(1, min((MOVING if position_biases(problem, part) else SCORES) // heads, rows))
    return max(1, rows if part.mask is None else min(SCORES, rows))


def needs_weights(problem: Problem, part: Part) -> bool:
    """Whether the weights of a part are needed, which the fused kernel does not return."""
    return part.region == NEAR and Stage.VALUES in problem.position.stages


def _results(problem: Problem, part: Part, extra: ScoreTerms) -> tuple[Tensor, Tensor]:
    """Output (B, H, n, r, Dv) and logsumexp (B, H, n, r, 1) over the keys of the part."""
    q, (k, v) = part.queries.take(problem.q), map(part.keys.take, keys_values(problem, part))
    output, logsumexp = batched_kernel.forward(q, k, v, extra.scores, problem.scale)
    if needs_weights(problem, part):
        safe = (
            logsumexp
            if extra.fully_masked is None
            else logsumexp.masked_fill(extra.fully_masked, torch.inf)
        )
        shares = batched_kernel.weights(q, k, extra.scores, safe, problem.scale)
        output = output + values(problem, part, shares).to(output.dtype)
    if extra.fully_masked is not None:
        logsumexp = logsumexp.masked_fill(extra.fully_masked, -torch.inf)
    return output, logsumexp[..., None]


def _merge(output: Tensor, logsumexp: Tensor, part: Part, new: tuple[Tensor, Tensor]) -> None:
    """Write a part of layer 0; merge any other by the logsumexps."""
    more, its_sum = new
    if not part.layer:
        part.queries.put(output, more)
        part.queries.put(logsumexp, its_sum)
        return
    old, old_sum = part.queries.take(output), part.queries.take(logsumexp)
    total = torch.logaddexp(old_sum, its_sum)
    floor = torch.where(total == -torch.inf, 0.0, total)
    share = (its_sum - floor).exp()
    part.queries.put(output, torch.lerp(old, more.to(old.dtype), share))
    part.queries.put(logsumexp, total)


def dense(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output and logsumexp in O(Lq Lk) memory, differentiable to any order."""
    shape = problem.shape
    whole = Part(StridedRows(0, 1, shape.queries), StridedRows(0, 1, shape.keys), problem.mask)
    extra = score_terms(problem, whole, problem.raw_queries[:, :, None])
    mask = None if extra.scores is None else extra.scores[:, :, 0]
    scores = kernel.plain_scores(problem.q, problem.k, mask, problem.scale)
    fully_masked = torch.zeros_like(scores[..., 0], dtype=torch.bool)
    if extra.fully_masked is not None:
        fully_masked = fully_masked | extra.fully_masked[:, :, 0]
    known = scores.masked_fill(fully_masked[..., None], 0.0)
    shares = known.softmax(-1).masked_fill(fully_masked[..., None], 0.0)
    output = kernel.grouped_matmul(shares, problem.v.to(shares.dtype))
    if needs_weights(problem, whole):
        output = output + values(problem, whole, shares[:, :, None])[:, :, 0]
    sums = known.logsumexp(-1).masked_fill(fully_masked, -torch.inf)
    if problem.sinks is not None:
        output, sums = apply_sinks(output, sums, problem.sinks)
    return output.to(problem.v.dtype), sums
