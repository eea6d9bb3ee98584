"""The gradients, part by part, from the output and the logsumexp over all parts.

For the pairs of a part with weights P = exp(scores - logsumexp), dV = Pᵀ dO and dS = P (dO Vᵀ - Δ),
where Δ = rowsum(dO O) follows from the output. So the gradients of the parts are computed
separately and added.

Source: Dao et al. 2022 (FlashAttention), appendix B.2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines.kernel import BackwardInputs, grouped_matmul
from headwise.engines.tiled import batched_kernel
from headwise.engines.tiled.batched_kernel import folded, unfolded
from headwise.engines.tiled.forward import covers, max_pairs
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.problem import NEAR, GradientBuffers, Problem
from headwise.engines.tiled.scores import chunks_with_terms, score_function, score_terms, values
from headwise.positions import Stage
from headwise.positions.relative_terms import RelativeTerms, skew

SIDE = 128  # number of rows of a block of queries

ROWS = 1 << 19
"""Numbers of q's gradient per kernel call; k and v have several times as many numbers."""


def backward(
    problem: Problem, given: BackwardInputs, learned: Sequence[Tensor] = ()
) -> GradientBuffers:
    """Compute the gradients of every tensor of an attention.

    With dropout, let P be the weights over all keys, and M = 1/(1-p) where a pair is kept and 0
    elsewhere. Then

        O = (M P) V      dS = P (M dO Vᵀ - Δ)      Δ = rowsum(dO O)

    Two runs are added. Over the kept pairs, dO/(1-p) and an output of 0 give P M dO Vᵀ and the
    gradient of V; over all pairs, dO, O and values of 0 give the rest, -P Δ. If every query attends
    to at most one key, the two cancel and both are 0.

    Args:
        problem: the attention.
        given: the output over all keys and sinks; its logsumexp is -inf on rows that have neither.
        learned: tensors on which the bias, or the term added to the output, depends.
    """
    problem, grad = problem.zero_masked(), given.grad.contiguous()
    sums = given.logsumexp.masked_fill(given.logsumexp == -torch.inf, torch.inf)[..., None]
    given = BackwardInputs(grad, given.output, sums, given.grad_sums)
    plan = problem.parts(SIDE)
    constant_weights = _single_key(problem, plan)
    if problem.keep is None:
        return _backward(problem, plan, given, learned, constant_weights)
    kept = replace(problem, mask=problem.mask & problem.keep)
    no_output = torch.zeros_like(given.output)
    products = BackwardInputs(grad / (1 - problem.keep.dropout), no_output, sums)
    buffers = _backward(kept, kept.parts(SIDE), products, (), constant_weights)
    silent = replace(problem, v=torch.zeros_like(problem.v))
    rest = _backward(silent, plan, given, (), constant_weights)
    buffers.q.add_(rest.q)
    buffers.k.add_(rest.k)
    return buffers


def _backward(
    problem: Problem,
    plan: Sequence[Part],
    given: BackwardInputs,
    learned: Sequence[Tensor],
    constant_weights: bool,
) -> GradientBuffers:
    """Compute the gradients over the pairs of some parts.

    With ``constant_weights`` the weights are treated as constants of the output.
    """
    bias_learned = _bias_learned(problem, learned)
    slow = list[Part]()
    for part in plan:
        by_weights = problem.needs_weights(part) or (bias_learned and part.region == NEAR)
        if by_weights or given.grad_sums is not None:
            slow.append(part)
    written = not slow and covers(plan, problem.shape)
    buffers = GradientBuffers.of(problem, learned, written=written)
    if slow:
        delta = _delta(problem, given, plan, constant_weights)
        for chunk in _small(problem, slow):
            own, depends = _own(given, chunk), problem.mask.biased and learned
            plain = not depends and not problem.needs_weights(chunk)
            plain = plain and problem.score_function is None
            if plain and problem.terms(chunk) is not None:
                add_by_products(buffers, problem, chunk, own, delta)
            else:
                _add_exactly(buffers, problem, chunk, own, delta, learned)
    for part in (part for part in plan if part not in slow):
        for chunk, extra in chunks_with_terms(problem, part, max_pairs(problem, part, ROWS)):
            q, k, v, _ = _rows(problem, chunk)
            own = _own(given, chunk)
            terms = q, k, v, extra.scores, problem.scale, score_function(problem, chunk)
            dq, dk, dv = batched_kernel.backward(own, *terms)
            first = written and not part.layer
            (chunk.queries.put if first else chunk.queries.add)(buffers.q, dq)
            for into, gradient in zip(buffers.rows(chunk), (dk, dv), strict=True):
                chunk.keys.add(into, gradient)
    if constant_weights and not slow:
        buffers.q.zero_()
        buffers.k.zero_()
    return buffers


class Delta(NamedTuple):
    """The term subtracted in dS = P (dO Vᵀ - Δ), for parts whose gradient is not the kernel's.

    Attributes:
        rows: Δ minus the gradient of the logsumexp, (B, H, Lq, 1); without Δ if ``complete``.
        complete: whether every part holds all keys of its queries. Δ is then computed from the
            numbers that it is subtracted from, so a row of dS sums to 0.
        constant_weights: whether the weights are treated as constants of the output.
    """

    rows: Tensor
    complete: bool
    constant_weights: bool


def _delta(
    problem: Problem, given: BackwardInputs, plan: Sequence[Part], constant_weights: bool
) -> Delta:
    """Compute the `Delta` of all rows.

    A row of dS should sum to 0, but an error in Δ, times the weights, does not. So O is recomputed
    if it was rounded to half precision, or if the weights are recomputed: Δ then has the same
    rounding errors as the weights.
    """
    wide, layered = softmax_dtype(problem.q.dtype), any(part.layer for part in plan)
    complete = problem.sinks is None and not constant_weights and not layered
    if constant_weights or complete:
        rows = torch.zeros_like(given.logsumexp)
    elif given.output.dtype == wide and Stage.VALUES not in problem.position.stages:
        rows = (given.grad * given.output).sum(-1, keepdim=True)
    else:
        rows = torch.zeros_like(given.logsumexp)
        for chunk in _small(problem, plan):
            own, inputs = _own(given, chunk), _rows(problem, chunk)
            output, _ = _exact(problem, chunk, own, inputs, problem.terms(chunk))
            chunk.queries.add(rows, (own.grad * output).sum(-1, keepdim=True))
    if given.grad_sums is not None:
        rows = rows - given.grad_sums[..., None]
    return Delta(rows, complete, constant_weights)


def _add_exactly(
    buffers: GradientBuffers,
    problem: Problem,
    part: Part,
    own: BackwardInputs,
    delta: Delta,
    learned: Sequence[Tensor],
) -> None:
    """Add the gradients of some blocks to the buffers, by autograd through their weights.

    The differentiated function is sum(dO O) - sum((Δ - dlogsumexp) P) with a constant logsumexp.
    Its derivative with respect to the scores is P (dO Vᵀ - Δ + dlogsumexp), as of the attention.
    """
    wide, where = softmax_dtype(problem.q.dtype), problem.differences(part)
    inputs = [rows.detach().requires_grad_() for rows in _rows(problem, part)]
    terms = problem.terms(part)
    if terms is not None:
        leaves = (None if term is None else term.detach().requires_grad_() for term in terms)
        terms = RelativeTerms(*leaves)
    with torch.enable_grad():
        output, weights = _exact(problem, part, own, inputs, terms, delta.constant_weights)
        dots, totals = (own.grad * output).sum(-1, keepdim=True), weights.sum(-1, keepdim=True)
        subtracted = part.queries.take(delta.rows)
        if delta.complete:
            subtracted = subtracted + _mean(dots, totals).detach()
        total = dots.sum() - (subtracted * totals).sum()
    sources = [*inputs, *learned, *(leaf for leaf in terms or () if leaf is not None)]
    gradients = torch.autograd.grad(total, sources, allow_unused=True)
    into = (buffers.q, *buffers.rows(part), buffers.raw_queries)
    places = (part.queries, part.keys, part.keys, part.queries)
    for buffer, rows, gradient in zip(into, places, gradients[:4], strict=True):
        if buffer is not None and gradient is not None:
            rows.add(buffer, gradient.to(wide))
    of_terms = () if where is None else buffers.relative.at(where)
    others = (*buffers.learned, *(buffer for buffer in of_terms if buffer is not None))
    for buffer, gradient in zip(others, gradients[4:], strict=True):
        if gradient is not None:
            buffer += gradient


def _bias_learned(problem: Problem, learned: Sequence[Tensor]) -> bool:
    """Return whether the bias depends on the queries or on a learned tensor."""
    if any(t is not None and t.requires_grad for t in (*learned, *(problem.relative or ()))):
        return True
    if Stage.SCORES not in problem.position.stages or not problem.raw_queries.requires_grad:
        return False
    with torch.enable_grad():
        query = problem.raw_queries[:, :, :1].detach().requires_grad_()
        _, _, queries, keys = problem.shape.indices()
        first = queries.flatten()[:1], keys.flatten()[:1]
        bias = problem.position.bias(query, *first, problem.scale)
    return bias is not None and bias.requires_grad


def _small(problem: Problem, plan: Sequence[Part]) -> Iterator[Part]:
    """Yield chunks that are small enough for several tensors of the size of their scores."""
    for part in plan:
        yield from part.chunks(max(1, max_pairs(problem, part) // 4))


def _exact(
    problem: Problem,
    part: Part,
    own: BackwardInputs,
    rows: Sequence[Tensor],
    terms: RelativeTerms | None,
    constant_weights: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the output of some blocks over their keys, and the weights, in the softmax dtype.

    The results of the blocks are ``own``; their q, k, v and unrotated queries are ``rows``.
    """
    q, k, v, raw_queries = rows
    extra = score_terms(problem, part, raw_queries, terms)
    others = extra.scores, own.logsumexp, problem.scale, score_function(problem, part)
    weights = batched_kernel.weights(q, k, *others)
    used = weights.detach() if constant_weights else weights
    output = batched_kernel.mixed(used, v)
    if problem.needs_weights(part):
        output = output + values(problem, part, used)
    return output, weights


def _single_key(problem: Problem, plan: Sequence[Part]) -> bool:
    """Return whether every query attends to at most one key: its weight is 1 for any score."""
    narrow = all(
        part.keys.size == 1 or (part.band is not None and len(part.band.allowed) == 1)
        for part in plan
    )
    return problem.sinks is None and narrow and not any(part.layer for part in plan)


def _own(given: BackwardInputs, part: Part) -> BackwardInputs:
    """Return the results of a part's queries, in blocks."""
    take = part.queries.take
    return BackwardInputs(take(given.grad), take(given.output), take(given.logsumexp)[..., 0])


def _rows(problem: Problem, part: Part) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the blocks of q, k, v and the unrotated queries."""
    queries, (k, v) = part.queries.take, map(part.keys.take, problem.keys_values(part))
    return queries(problem.q), k, v, queries(problem.raw_queries)


def add_by_products(
    buffers: GradientBuffers, problem: Problem, part: Part, own: BackwardInputs, delta: Delta
) -> None:
    """Add the gradients of some blocks to the buffers, by matrix products.

    `Problem.terms` must return the bias of the blocks.
    """
    q, k, v, raw_queries = map(folded, _rows(problem, part))
    wide, samples, scale = softmax_dtype(q.dtype), problem.shape.batch, problem.scale
    grad, (from_keys, from_values) = folded(own.grad).to(wide), buffers.rows(part)
    weights = _weights(problem, part, own, q, k)  # (N, H, r, m)
    scores = _score_gradient(weights, grad, v, folded(part.queries.take(delta.rows)), delta)
    part.keys.add(from_values, unfolded(_key_gradient(weights, grad, v.shape[1]), samples))
    del weights
    part.queries.add(buffers.q, unfolded(grouped_matmul(scores, k.to(wide)) * scale, samples))
    of_keys = _key_gradient(scores, q.to(wide), k.shape[1], scale)
    part.keys.add(from_keys, unfolded(of_keys, samples))
    _add_bias(buffers, problem, part, raw_queries, scores)


def _weights(problem: Problem, part: Part, own: BackwardInputs, q: Tensor, k: Tensor) -> Tensor:
    """Compute P, (N, H, r, m), in place."""
    extra = score_terms(problem, part, part.queries.take(problem.raw_queries)).scores
    wide = softmax_dtype(q.dtype)
    scores = grouped_matmul(q.to(wide) * problem.scale, k.to(wide).mT)
    if extra is not None:
        scores += folded(extra.expand(problem.shape.batch, -1, part.queries.count, -1, -1))
    return scores.sub_(folded(own.logsumexp[..., None])).exp_()


def _score_gradient(
    weights: Tensor, grad: Tensor, v: Tensor, subtracted: Tensor, delta: Delta
) -> Tensor:
    """Return dS, (N, H, r, m)."""
    if delta.constant_weights:
        return -weights * subtracted
    products = grouped_matmul(grad, v.to(grad.dtype).mT)
    if delta.complete:
        dots, totals = (products * weights).sum(-1, keepdim=True), weights.sum(-1, keepdim=True)
        subtracted = subtracted + _mean(dots, totals)
    return products.sub_(subtracted).mul_(weights)


def _mean(total: Tensor, weights: Tensor) -> Tensor:
    """Divide the weighted sum of each row by its sum of weights; 0 if no key is allowed."""
    return total / torch.where(weights == 0, 1.0, weights)


def _key_gradient(pairs: Tensor, rows: Tensor, groups: int, scale: float = 1.0) -> Tensor:
    """Return pairsᵀ rows · scale, summed over the heads of a group: (N, G, m, X)."""
    samples, _, _, keys = pairs.shape
    pairs = pairs.reshape(samples, groups, -1, keys)
    return pairs.mT @ (rows * scale).reshape(samples, groups, -1, rows.shape[3])


def _add_bias(
    buffers: GradientBuffers, problem: Problem, part: Part, raw_queries: Tensor, scores: Tensor
) -> None:
    """Add the gradients of queries, vectors and numbers of the bias, from dS (N, H, r, m)."""
    terms, where = problem.terms(part), problem.differences(part)
    if terms is None or where is None:
        raise ValueError("tiled: a part whose blocks differ in their differences")
    samples, heads, rows, keys = scores.shape
    products = scores.new_zeros(heads, samples, rows, rows + keys - 1)
    skew(products.transpose(0, 1), rows).copy_(scores)  # dS at each difference, else 0
    vectors, shift, numbers = buffers.relative
    if vectors is not None and terms.vectors is not None:
        shared = products.reshape(terms.vectors.shape[0], -1, products.shape[3])
        of_queries = (shared @ terms.vectors * problem.scale).view(*products.shape[:3], -1)
        if buffers.raw_queries is not None:
            blocks = unfolded(of_queries.transpose(0, 1), problem.shape.batch)
            part.queries.add(buffers.raw_queries, blocks)
        vectors[:, where] += ((terms.rows(raw_queries) * problem.scale).mT @ shared).mT
        if shift is not None:
            shift += of_queries.sum((1, 2))
    if numbers is not None:
        numbers[:, where] += products.sum((1, 2))
