"""The gradients, a part at a time, from the output and the logsumexp over all parts.

For weights P = exp(scores - logsumexp) of the pairs of a part, dV = Pᵀ dO and dS = P (dO Vᵀ - Δ),
where Δ = rowsum(dO O) needs all parts and is known from the output. So each part's gradients are
computed alone and added up.

Source: Dao et al. 2022 (FlashAttention), appendix B.2.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines.tiled import blocks
from headwise.engines.tiled.forward import by_weights, covers, most, pieces
from headwise.engines.tiled.kernel import Given
from headwise.engines.tiled.layers import parts
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.scores import added, values
from headwise.engines.tiled.work import Work

SIDE = 128
"""Rows of a block of queries."""

ROWS = 1 << 19
"""Numbers of the gradient of q that one kernel call gives; k's and v's are some times as many."""


def backward(work: Work, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v where the bias is fixed.

    Args:
        work: the attention.
        given: over all keys; the logsumexp is -inf on blind rows.
    """
    wide = softmax_dtype(work.q.dtype)
    seen, plan = _seen(given), parts(work.mask, work.frame, SIDE)
    dk, dv = (torch.zeros_like(t, dtype=wide) for t in (work.k, work.v))
    dq = torch.empty_like(work.q, dtype=wide)
    if not covers(plan, work.frame):
        dq.zero_()
    for part in plan:
        for chunk, extra in pieces(work, part, most(work, part, ROWS)):
            own = _own(seen, chunk)
            from_q, from_k, from_v = blocks.backward(
                own, *_rows(work, chunk)[:3], extra.scores, work.scale
            )
            (chunk.queries.add if part.layer else chunk.queries.put)(dq, from_q)
            chunk.keys.add(dk, from_k)
            chunk.keys.add(dv, from_v)
    if _lonely(plan):
        dq, dk = torch.zeros_like(dq), torch.zeros_like(dk)
    return dq.to(work.q.dtype), dk.to(work.k.dtype), dv.to(work.v.dtype)


def backward_of_all(
    work: Work, given: Given, grad_logsumexp: Tensor | None, learned: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of q, k, v and the queries as asked, and of what the bias is made of.

    Each part's weights are written out, and differentiated through the function
    sum(dO O) - sum((Δ - dlogsumexp) P) with the logsumexp held, whose derivative in the scores is
    P (dO Vᵀ - Δ + dlogsumexp): that of the attention.

    Args:
        work: the attention.
        given: over all keys; the logsumexp is -inf on blind rows.
        grad_logsumexp: (B, H, Lq), or None.
        learned: tensors that the bias, or what is added to the values, depends on.
    """
    wide = softmax_dtype(work.q.dtype)
    sums = [torch.zeros_like(t, dtype=wide) for t in (work.q, work.k, work.v, work.asked)]
    others = [torch.zeros_like(t, dtype=wide) for t in learned]
    seen, plan = _seen(given), parts(work.mask, work.frame, SIDE)
    lonely = _lonely(plan)
    held = torch.zeros_like(seen.logsumexp) if lonely else _delta(work, seen, plan)
    held = held if grad_logsumexp is None else held - grad_logsumexp[..., None]
    for chunk in _small(work, plan):
        own = _own(seen, chunk)
        inputs = [rows.detach().requires_grad_() for rows in _rows(work, chunk)]
        with torch.enable_grad():
            output, shares = _exact(work, chunk, own, inputs, still=lonely)
            total = (own.grad * output).sum()
            total = total - (chunk.queries.take(held) * shares.sum(-1, keepdim=True)).sum()
        gradients = torch.autograd.grad(total, [*inputs, *learned], allow_unused=True)
        rows = (chunk.queries, chunk.keys, chunk.keys, chunk.queries)
        for into, where, gradient in zip(sums, rows, gradients[:4], strict=True):
            if gradient is not None:
                where.add(into, gradient.to(wide))
        for into, gradient in zip(others, gradients[4:], strict=True):
            if gradient is not None:
                into += gradient
    return sums, others


def _small(work: Work, plan: Sequence[Part]) -> Iterator[Part]:
    """Chunks of which several things the size of the scores can be held at once."""
    for part in plan:
        yield from part.chunks(max(1, most(work, part) // 4))


def _delta(work: Work, given: Given, plan: Sequence[Part]) -> Tensor:
    """rowsum(dO O), (B, H, Lq, 1). In half precision O is computed anew: its rounding would add up.

    A sum over a row of weights times an error of Δ is not small where the sum of dS itself is 0.
    """
    wide = softmax_dtype(work.q.dtype)
    if given.output.dtype == wide:
        return (given.grad * given.output).sum(-1, keepdim=True)
    held = torch.zeros_like(given.logsumexp)
    for chunk in _small(work, plan):
        own = _own(given, chunk)
        output, _ = _exact(work, chunk, own, _rows(work, chunk))
        chunk.queries.add(held, (own.grad * output).sum(-1, keepdim=True))
    return held


def _exact(
    work: Work, part: Part, own: Given, rows: Sequence[Tensor], *, still: bool = False
) -> tuple[Tensor, Tensor]:
    """What a part adds to the output, and its weights, in the softmax dtype.

    Args:
        work: the attention.
        part: some blocks of it.
        own: their results.
        rows: their q, k, v and the queries as asked.
        still: whether the output takes the weights as constants.
    """
    q, k, v, asked = rows
    extra = added(work, part, asked)
    shares = blocks.weights(q, k, extra.scores, own.logsumexp, work.scale)
    used = shares.detach() if still else shares
    output = blocks.mixed(used, v)
    return (output + values(work, part, used) if by_weights(work) else output), shares


def _lonely(plan: Sequence[Part]) -> bool:
    """Whether no query sees more than one key: its weight is 1, whatever the score."""
    narrow = all(
        part.keys.size == 1 or (part.band is not None and len(part.band.allowed) == 1)
        for part in plan
    )
    return narrow and not any(part.layer for part in plan)


def _seen(given: Given) -> Given:
    """With logsumexp +inf on blind rows, (B, H, Lq, 1): their weights are 0."""
    sums = given.logsumexp.masked_fill(given.logsumexp == -torch.inf, torch.inf)
    return Given(given.grad, given.output, sums[..., None])


def _own(given: Given, part: Part) -> Given:
    take = part.queries.take
    return Given(take(given.grad), take(given.output), take(given.logsumexp)[..., 0])


def _rows(work: Work, part: Part) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Blocks of q, k, v, and the queries as asked."""
    queries, keys = part.queries.take, part.keys.take
    return queries(work.q), keys(work.k), keys(work.v), queries(work.asked)
