"""The gradients, part by part, from the output and the logsumexp over all parts.

For weights P = exp(scores - logsumexp) of the pairs of a part, dV = Pᵀ dO and dS = P (dO Vᵀ - Δ),
where Δ = rowsum(dO O) follows from the output. So the gradients of the parts are computed
separately and added up.

Source: Dao et al. 2022 (FlashAttention), appendix B.2.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines.kernel import BackwardInputs, grouped_matmul
from headwise.engines.tiled import batched_kernel
from headwise.engines.tiled.forward import chunks_with_terms, covers, max_pairs, needs_weights
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.problem import NEAR, GradientBuffers, Problem, keys_values, region_parts
from headwise.engines.tiled.scores import (
    differences,
    folded,
    relative,
    score_terms,
    unfolded,
    values,
)
from headwise.positions import Stage
from headwise.positions.relative_terms import RelativeTerms, skew

SIDE = 128
"""Rows of a block of queries."""

ROWS = 1 << 19
"""Numbers of the gradient of q that one kernel call gives; k's and v's are some times as many."""


def backward(
    problem: Problem,
    given: BackwardInputs,
    grad_logsumexp: Tensor | None = None,
    learned: Sequence[Tensor] = (),
    *,
    constant_weights: bool | None = None,
) -> GradientBuffers:
    """The gradients of every tensor of an attention.

    Args:
        problem: the attention.
        given: of the output over all keys and sinks; the logsumexp is -inf on rows without either.
        grad_logsumexp: (B, H, Lq), or None.
        learned: tensors that the bias, or what is added to the values, depends on.
        constant_weights: whether the output takes the weights as constants; None means
            where no query sees more than one key.
    """
    seen, plan = _seen(given), region_parts(problem, SIDE)
    constant_weights = _single_key(problem, plan) if constant_weights is None else constant_weights
    moves = _bias_learned(problem, learned)
    slow = [
        part
        for part in plan
        if grad_logsumexp is not None
        or needs_weights(problem, part)
        or (moves and part.region == NEAR)
    ]
    written = not slow and covers(plan, problem.shape)
    buffers = GradientBuffers.of(problem, learned, written=written)
    if slow:
        complete = (
            problem.sinks is None and not constant_weights and not any(part.layer for part in plan)
        )
        known = constant_weights or complete
        held = torch.zeros_like(seen.logsumexp) if known else _delta(problem, seen, plan)
        held = held if grad_logsumexp is None else held - grad_logsumexp[..., None]
        for chunk in _small(problem, slow):
            own = _own(seen, chunk)
            if _by_products(problem, chunk, learned):
                add_by_products(
                    buffers,
                    problem,
                    chunk,
                    own,
                    held,
                    constant_weights=constant_weights,
                    complete=complete,
                )
            else:
                _add_exactly(
                    buffers,
                    problem,
                    chunk,
                    own,
                    learned,
                    held,
                    constant_weights=constant_weights,
                    complete=complete,
                )
    for part in (part for part in plan if part not in slow):
        for chunk, extra in chunks_with_terms(problem, part, max_pairs(problem, part, ROWS)):
            rows = _rows(problem, chunk)[:3]
            from_q, from_k, from_v = batched_kernel.backward(
                _own(seen, chunk), *rows, extra.scores, problem.scale
            )
            first = written and not part.layer
            (chunk.queries.put if first else chunk.queries.add)(buffers.q, from_q)
            for into, gradient in zip(buffers.rows(chunk), (from_k, from_v), strict=True):
                chunk.keys.add(into, gradient)
    if constant_weights and not slow:
        buffers.q.zero_()
        buffers.k.zero_()
    return buffers


def _add_exactly(
    buffers: GradientBuffers,
    problem: Problem,
    chunk: Part,
    own: BackwardInputs,
    learned: Sequence[Tensor],
    held: Tensor,
    *,
    constant_weights: bool,
    complete: bool,
) -> None:
    """Add the gradients from some blocks, through autograd over their weights.

    The function differentiated is sum(dO O) - sum((Δ - dlogsumexp) P) with a constant logsumexp.
    Its derivative with respect to the scores is P (dO Vᵀ - Δ + dlogsumexp), as of the attention.

    Args:
        buffers: are added to.
        problem: the attention.
        chunk: the blocks.
        own: their results.
        learned: as for `backward`.
        held: Δ - dlogsumexp, (B, H, Lq, 1).
        constant_weights: whether the output takes the weights as constants.
        complete: whether the blocks hold all keys that their queries see, so that Δ is theirs.
    """
    wide, where = softmax_dtype(problem.q.dtype), differences(problem, chunk)
    inputs = [rows.detach().requires_grad_() for rows in _rows(problem, chunk)]
    given = _leaves(relative(problem, chunk))
    with torch.enable_grad():
        output, shares = _exact(
            problem, chunk, own, inputs, given, constant_weights=constant_weights
        )
        dots, sums_ = (own.grad * output).sum(-1, keepdim=True), shares.sum(-1, keepdim=True)
        taken = chunk.queries.take(held)
        taken = taken + over(dots, sums_).detach() if complete else taken
        total = dots.sum() - (taken * sums_).sum()
    wanted = [*inputs, *learned, *(leaf for leaf in given or () if leaf is not None)]
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    into = (buffers.q, *buffers.rows(chunk), buffers.raw_queries)
    places = (chunk.queries, chunk.keys, chunk.keys, chunk.queries)
    for one, rows, gradient in zip(into, places, found[:4], strict=True):
        if one is not None and gradient is not None:
            rows.add(one, gradient.to(wide))
    known = () if where is None else buffers.relative.at(where)
    others = (*buffers.learned, *(one for one in known if one is not None))
    for one, gradient in zip(others, found[4:], strict=True):
        if gradient is not None:
            one += gradient


def _leaves(given: RelativeTerms | None) -> RelativeTerms | None:
    """The same terms as leaves that require gradients."""
    if given is None:
        return None
    return RelativeTerms(
        *(None if term is None else term.detach().requires_grad_() for term in given)
    )


def _bias_learned(problem: Problem, learned: Sequence[Tensor]) -> bool:
    """Whether the bias depends on the queries or on a learned tensor."""
    held = (*learned, *(problem.relative or ()))
    if any(tensor is not None and tensor.requires_grad for tensor in held):
        return True
    if Stage.SCORES not in problem.position.stages or not problem.raw_queries.requires_grad:
        return False
    with torch.enable_grad():
        one = problem.raw_queries[:, :, :1].detach().requires_grad_()
        _, _, queries, keys = problem.shape.indices()
        bias = problem.position.bias(one, queries.flatten()[:1], keys.flatten()[:1], problem.scale)
    return bias is not None and bias.requires_grad


def _by_products(problem: Problem, part: Part, learned: Sequence[Tensor]) -> bool:
    """Whether matrix products alone give the gradients of a part."""
    fixed = not problem.mask.biased or not learned
    return fixed and not needs_weights(problem, part) and relative(problem, part) is not None


def _small(problem: Problem, plan: Sequence[Part]) -> Iterator[Part]:
    """Chunks small enough for several tensors of the size of their scores."""
    for part in plan:
        yield from part.chunks(max(1, max_pairs(problem, part) // 4))


def _delta(problem: Problem, given: BackwardInputs, plan: Sequence[Part]) -> Tensor:
    """rowsum(dO O), (B, H, Lq, 1).

    Where a row of dS sums to 0, an error of Δ times the weights does not. So O is recomputed where
    it was rounded to half precision, and where the weights are computed again, so that Δ has the
    same rounding errors as they.
    """
    wide = softmax_dtype(problem.q.dtype)
    if given.output.dtype == wide and Stage.VALUES not in problem.position.stages:
        return (given.grad * given.output).sum(-1, keepdim=True)
    held = torch.zeros_like(given.logsumexp)
    for chunk in _small(problem, plan):
        own = _own(given, chunk)
        output, _ = _exact(problem, chunk, own, _rows(problem, chunk), relative(problem, chunk))
        chunk.queries.add(held, (own.grad * output).sum(-1, keepdim=True))
    return held


def _exact(
    problem: Problem,
    part: Part,
    own: BackwardInputs,
    rows: Sequence[Tensor],
    given: RelativeTerms | None,
    *,
    constant_weights: bool = False,
) -> tuple[Tensor, Tensor]:
    """The contribution of a part to the output, and its weights, in the softmax dtype.

    Args:
        problem: the attention.
        part: some blocks of it.
        own: their results.
        rows: their q, k, v and raw queries.
        given: the relative terms of their bias, if it has any.
        constant_weights: whether the output takes the weights as constants.
    """
    q, k, v, raw_queries = rows
    extra = score_terms(problem, part, raw_queries, given)
    shares = batched_kernel.weights(q, k, extra.scores, own.logsumexp, problem.scale)
    used = shares.detach() if constant_weights else shares
    output = batched_kernel.mixed(used, v)
    if needs_weights(problem, part):
        output = output + values(problem, part, used)
    return output, shares


def single_key(problem: Problem) -> bool:
    """Whether no query sees more than one key, so that its weight is 1 for any score."""
    return _single_key(problem, region_parts(problem, SIDE))


def _single_key(problem: Problem, plan: Sequence[Part]) -> bool:
    narrow = all(
        part.keys.size == 1 or (part.band is not None and len(part.band.allowed) == 1)
        for part in plan
    )
    return problem.sinks is None and narrow and not any(part.layer for part in plan)


def _seen(given: BackwardInputs) -> BackwardInputs:
    """With logsumexp (B, H, Lq, 1), +inf on fully masked rows, whose weights are then 0."""
    sums = given.logsumexp.masked_fill(given.logsumexp == -torch.inf, torch.inf)
    return BackwardInputs(given.grad, given.output, sums[..., None])


def _own(given: BackwardInputs, part: Part) -> BackwardInputs:
    take = part.queries.take
    return BackwardInputs(take(given.grad), take(given.output), take(given.logsumexp)[..., 0])


def _rows(problem: Problem, part: Part) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Blocks of q, k, v and the raw queries."""
    queries, (k, v) = part.queries.take, map(part.keys.take, keys_values(problem, part))
    return queries(problem.q), k, v, queries(problem.raw_queries)


def add_by_products(
    buffers: GradientBuffers,
    problem: Problem,
    part: Part,
    own: BackwardInputs,
    held: Tensor,
    *,
    constant_weights: bool,
    complete: bool,
) -> None:
    """Add the gradients from some blocks, by matrix products.

    Args:
        buffers: are added to.
        problem: the attention.
        part: the blocks, for which `relative` gives the bias.
        own: their results.
        held: Δ - dlogsumexp, (B, H, Lq, 1).
        constant_weights: whether the output takes the weights as constants.
        complete: whether the blocks hold all keys that their queries see. Δ is then computed from
            the numbers it is subtracted from, so that a row of dS sums to 0.
    """
    q, raw_queries = (folded(part.queries.take(rows)) for rows in (problem.q, problem.raw_queries))
    k, v = (folded(part.keys.take(rows)) for rows in keys_values(problem, part))
    grad = folded(own.grad).to(softmax_dtype(problem.q.dtype))
    shares = _weights(problem, part, own, q, k)  # (N, H, r, m)
    scores = _moved(shares, grad, v, folded(part.queries.take(held)), constant_weights, complete)
    samples, (from_keys, from_values) = problem.shape.batch, buffers.rows(part)
    part.keys.add(from_values, unfolded(_key_gradient(shares, grad, v.shape[1]), samples))
    del shares
    wide = scores.dtype
    part.queries.add(
        buffers.q, unfolded(grouped_matmul(scores, k.to(wide)) * problem.scale, samples)
    )
    part.keys.add(
        from_keys, unfolded(_key_gradient(scores, q.to(wide), k.shape[1], problem.scale), samples)
    )
    _add_bias(buffers, problem, part, raw_queries, scores)


def _weights(problem: Problem, part: Part, own: BackwardInputs, q: Tensor, k: Tensor) -> Tensor:
    """P, (N, H, r, m), computed in place."""
    extra = score_terms(problem, part, part.queries.take(problem.raw_queries)).scores
    wide = softmax_dtype(q.dtype)
    scores = grouped_matmul(q.to(wide) * problem.scale, k.to(wide).mT)
    if extra is not None:
        scores += folded(extra.expand(problem.shape.batch, -1, part.queries.count, -1, -1))
    return scores.sub_(folded(own.logsumexp[..., None])).exp_()


def _moved(
    shares: Tensor, grad: Tensor, v: Tensor, held: Tensor, constant_weights: bool, complete: bool
) -> Tensor:
    """dS, (N, H, r, m)."""
    if constant_weights:
        return -shares * held
    values = grouped_matmul(grad, v.to(grad.dtype).mT)
    if complete:
        held = held + over((values * shares).sum(-1, keepdim=True), shares.sum(-1, keepdim=True))
    return values.sub_(held).mul_(shares)


def over(total: Tensor, shares: Tensor) -> Tensor:
    """The weighted mean of a row from its total and its sum of weights; 0 where no key is seen."""
    return total / torch.where(shares == 0, 1.0, shares)


def _key_gradient(pairs: Tensor, rows: Tensor, groups: int, scale: float = 1.0) -> Tensor:
    """pairsᵀ rows · scale, summed over the heads of a group: (N, G, m, X)."""
    samples, _, _, keys = pairs.shape
    pairs = pairs.reshape(samples, groups, -1, keys)
    return pairs.mT @ (rows * scale).reshape(samples, groups, -1, rows.shape[3])


def _add_bias(
    buffers: GradientBuffers, problem: Problem, part: Part, raw_queries: Tensor, scores: Tensor
) -> None:
    """Add the gradients of raw queries, vectors and numbers from dS (N, H, r, m)."""
    given, where = relative(problem, part), differences(problem, part)
    if given is None or where is None:
        raise ValueError("tiled: a part whose blocks differ in their differences")
    products, (vectors, shift, numbers) = _spread(scores), buffers.relative
    if vectors is not None and given.vectors is not None:
        shared = products.reshape(given.vectors.shape[0], -1, products.shape[3])
        rows = (shared @ given.vectors * problem.scale).view(*products.shape[:3], -1)
        if buffers.raw_queries is not None:
            part.queries.add(
                buffers.raw_queries, unfolded(rows.transpose(0, 1), problem.shape.batch)
            )
        vectors[:, where] += ((given.rows(raw_queries) * problem.scale).mT @ shared).mT
        if shift is not None:
            shift += rows.sum((1, 2))
    if numbers is not None:
        numbers[:, where] += products.sum((1, 2))


def _spread(scores: Tensor) -> Tensor:
    """What `skew` shows as the scores (N, H, r, m), and 0 where it does not look: (H, N, r, T)."""
    samples, heads, rows, keys = scores.shape
    products = scores.new_zeros(heads, samples, rows, rows + keys - 1)
    skew(products.transpose(0, 1), rows).copy_(scores)
    return products
