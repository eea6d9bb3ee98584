"""The output and the logsumexp, part by part."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines import kernel
from headwise.engines.dropout import Keep, drops, kept_share
from headwise.engines.statistics import apply_sinks
from headwise.engines.tiled import batched_kernel
from headwise.engines.tiled.parts import IndexedRows, Part, StridedRows
from headwise.engines.tiled.problem import Problem, finite
from headwise.engines.tiled.scores import (
    ScoreTerms,
    chunks_with_terms,
    score_function,
    score_terms,
    values,
)
from headwise.shapes import AttentionShape

SIDE = 64  # number of rows of a block of queries
SCORES = 1 << 22  # the most scores in memory at once, over all samples and heads
MOVING = 1 << 21  # the most scores at once where a position computes their bias
DROPPED = 1 << 19  # the most pairs whose dropout is computed at once: they fit in a cache
ROWS = 1 << 21  # numbers of the output that one kernel call computes
COPIED = 1 << 22  # the most numbers of keys and values gathered at once, except for one block


def forward(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return output (B, H, Lq, Dv) and logsumexp (B, H, Lq).

    The logsumexp is -inf on a fully masked row without a sink. With dropout, it is over all keys.
    """
    if problem.keep is not None:
        return _with_dropout(problem, problem.keep, forward)
    output, logsumexp = _run(problem)
    if not finite(output):  # perhaps because of a key that no query attends to
        output, logsumexp = _run(problem.zero_masked())
    return output, logsumexp


def _with_dropout(
    problem: Problem, keep: Keep, run: Callable[[Problem], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return the results with dropout, from two runs without dropout."""
    _, whole = run(replace(problem, keep=None))
    output, some = run(replace(problem, mask=problem.mask & keep, keep=None))
    return (output * kept_share(some, whole, keep.dropout)).to(output.dtype), whole


def _run(problem: Problem) -> tuple[Tensor, Tensor]:
    shape, wide = problem.q.shape[:3], softmax_dtype(problem.q.dtype)
    plan = problem.parts(SIDE)
    dtype = wide if any(part.layer for part in plan) else problem.v.dtype
    output = problem.v.new_empty(*shape, problem.v.shape[3], dtype=dtype)
    logsumexp = problem.q.new_empty(*shape, 1, dtype=wide)
    if not covers(plan, problem.shape):
        output.zero_()
        logsumexp.fill_(-torch.inf)
    for part in plan:
        for chunk, extra in chunks_with_terms(problem, part, max_pairs(problem, part)):
            _merge(output, logsumexp, chunk, _results(problem, chunk, extra))
            del extra  # free it before the next chunk is computed
    output, sums = apply_sinks(output, logsumexp[..., 0], problem.sinks)
    return output.to(problem.v.dtype), sums


def covers(plan: Sequence[Part], shape: AttentionShape) -> bool:
    """Return whether the parts of layer 0 write every query."""
    rows = sum(part.queries.count * part.queries.size for part in plan if not part.layer)
    return rows == shape.queries


def max_pairs(problem: Problem, part: Part, numbers: int = ROWS) -> int:
    """Return how many pairs of a part to compute at once, for O(L) memory.

    A kernel call then computes at most ``numbers`` numbers of the output.
    """
    heads = problem.shape.batch * problem.shape.heads
    rows = max(1, numbers // (heads * problem.v.shape[3])) * part.keys.size
    if isinstance(part.keys, IndexedRows):
        width = problem.k.shape[3] + problem.v.shape[3]
        blocks = COPIED // (problem.k.shape[0] * problem.k.shape[1] * width * part.keys.size)
        rows = min(rows, max(1, blocks) * part.queries.size * part.keys.size)
    if drops(problem.mask):
        return max(1, min(DROPPED // heads, rows))
    if problem.position_biases(part):
        return max(1, min(MOVING // heads, rows))
    products = problem.mask.biased or problem.score_function is not None
    kernel_suffices = kernel.fused(problem.q) and not products
    if not kernel_suffices or problem.needs_weights(part):
        return max(1, min(SCORES // heads, rows))
    return max(1, rows if part.mask is None else min(SCORES, rows))


def _results(problem: Problem, part: Part, extra: ScoreTerms) -> tuple[Tensor, Tensor]:
    """Return output (B, H, n, r, Dv) and logsumexp (B, H, n, r, 1) over the keys of a part."""
    q, (k, v) = part.queries.take(problem.q), map(part.keys.take, problem.keys_values(part))
    modify = score_function(problem, part)
    output, logsumexp = batched_kernel.forward(q, k, v, extra.scores, problem.scale, modify)
    hidden = extra.fully_masked
    if problem.needs_weights(part):
        safe = logsumexp if hidden is None else logsumexp.masked_fill(hidden, torch.inf)
        weights = batched_kernel.weights(q, k, extra.scores, safe, problem.scale, modify)
        output = output + values(problem, part, weights).to(output.dtype)
    if hidden is not None:
        logsumexp = logsumexp.masked_fill(hidden, -torch.inf)
    return output, logsumexp[..., None]


def _merge(output: Tensor, logsumexp: Tensor, part: Part, new: tuple[Tensor, Tensor]) -> None:
    """Write the results of a part of layer 0; merge those of a higher layer by the logsumexps."""
    rows, new_sum = new
    if part.layer:
        old_sum = part.queries.take(logsumexp)
        total = torch.logaddexp(old_sum, new_sum)
        floor = torch.where(total == -torch.inf, 0.0, total)
        share = (new_sum - floor).exp()
        rows = torch.lerp(part.queries.take(output), rows.to(output.dtype), share)
        new_sum = total
    part.queries.put(output, rows)
    part.queries.put(logsumexp, new_sum)


def dense(problem: Problem) -> tuple[Tensor, Tensor]:
    """Compute `forward` in O(Lq Lk) memory, differentiable to any order."""
    if problem.keep is not None:
        return _with_dropout(problem, problem.keep, dense)
    problem, shape = problem.zero_masked(), problem.shape
    whole = Part(StridedRows(0, 1, shape.queries), StridedRows(0, 1, shape.keys), problem.mask)
    extra = score_terms(problem, whole, problem.raw_queries[:, :, None])
    added, fully_masked = (None if t is None else t[:, :, 0] for t in extra)
    modify = score_function(problem, whole)
    scores = kernel.plain_scores(problem.q, problem.k, added, problem.scale, modify)
    weights, sums = kernel.plain_softmax(scores, fully_masked)
    output = kernel.grouped_matmul(weights, problem.v.to(weights.dtype))
    if problem.needs_weights(whole):
        output = output + values(problem, whole, weights[:, :, None])[:, :, 0]
    output, sums = apply_sinks(output, sums, problem.sinks)
    return output.to(problem.v.dtype), sums
