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
from headwise.engines.tiled.far import NEAR, planned, rows_of
from headwise.engines.tiled.forward import by_weights, covers, most, pieces
from headwise.engines.tiled.kernel import Given
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.products import add_by_products, over
from headwise.engines.tiled.scores import added, differences, relative, values
from headwise.engines.tiled.sums import Sums
from headwise.engines.tiled.work import Work
from headwise.positions import Stage
from headwise.positions.relative import Relative

SIDE = 128
"""Rows of a block of queries."""

ROWS = 1 << 19
"""Numbers of the gradient of q that one kernel call gives; k's and v's are some times as many."""


def backward(
    work: Work,
    given: Given,
    grad_logsumexp: Tensor | None = None,
    learned: Sequence[Tensor] = (),
    *,
    alone: bool | None = None,
) -> Sums:
    """The gradients of everything that an attention is made of.

    Args:
        work: the attention.
        given: over all keys and the sinks; the logsumexp is -inf on rows without either.
        grad_logsumexp: (B, H, Lq), or None.
        learned: tensors that the bias, or what is added to the values, depends on.
        alone: what `lonely` says where the logsumexp is another attention's; None to ask it.
    """
    seen, plan = _seen(given), planned(work, SIDE)
    still = _lonely(work, plan) if alone is None else alone
    moves = _moves(work, learned)
    slow = [
        part
        for part in plan
        if grad_logsumexp is not None or by_weights(work, part) or (moves and part.place == NEAR)
    ]
    written = not slow and covers(plan, work.frame)
    sums = Sums.of(work, learned, written=written)
    if slow:
        whole = work.sinks is None and not still and not any(part.layer for part in plan)
        known = still or whole
        held = torch.zeros_like(seen.logsumexp) if known else _delta(work, seen, plan)
        held = held if grad_logsumexp is None else held - grad_logsumexp[..., None]
        for chunk in _small(work, slow):
            own = _own(seen, chunk)
            if _by_products(work, chunk, learned):
                add_by_products(sums, work, chunk, own, held, still=still, whole=whole)
            else:
                _add_exactly(sums, work, chunk, own, learned, held, still=still, whole=whole)
    for part in (each for each in plan if each not in slow):
        for chunk, extra in pieces(work, part, most(work, part, ROWS)):
            rows = _rows(work, chunk)[:3]
            from_q, from_k, from_v = blocks.backward(
                _own(seen, chunk), *rows, extra.scores, work.scale
            )
            first = written and not part.layer
            (chunk.queries.put if first else chunk.queries.add)(sums.q, from_q)
            for into, gradient in zip(sums.rows(chunk), (from_k, from_v), strict=True):
                chunk.keys.add(into, gradient)
    if still and not slow:
        sums.q.zero_()
        sums.k.zero_()
    return sums


def _add_exactly(
    sums: Sums,
    work: Work,
    chunk: Part,
    own: Given,
    learned: Sequence[Tensor],
    held: Tensor,
    *,
    still: bool,
    whole: bool,
) -> None:
    """Add what some blocks contribute, their weights being written out.

    They are differentiated through the function sum(dO O) - sum((Δ - dlogsumexp) P) with the
    logsumexp held, whose derivative in the scores is P (dO Vᵀ - Δ + dlogsumexp): that of the
    attention.

    Args:
        sums: what is added to.
        work: the attention.
        chunk: the blocks.
        own: their results.
        learned: as for `backward`.
        held: Δ - dlogsumexp, (B, H, Lq, 1).
        still: whether the output takes the weights as constants.
        whole: whether the blocks have all keys that their queries see, and give Δ themselves.
    """
    wide, where = softmax_dtype(work.q.dtype), differences(work, chunk)
    inputs = [rows.detach().requires_grad_() for rows in _rows(work, chunk)]
    given = _leaves(relative(work, chunk))
    with torch.enable_grad():
        output, shares = _exact(work, chunk, own, inputs, given, still=still)
        each, sums_ = (own.grad * output).sum(-1, keepdim=True), shares.sum(-1, keepdim=True)
        taken = chunk.queries.take(held)
        taken = taken + over(each, sums_).detach() if whole else taken
        total = each.sum() - (taken * sums_).sum()
    wanted = [*inputs, *learned, *(leaf for leaf in given or () if leaf is not None)]
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    into = (sums.q, *sums.rows(chunk), sums.asked)
    places = (chunk.queries, chunk.keys, chunk.keys, chunk.queries)
    for one, rows, gradient in zip(into, places, found[:4], strict=True):
        if one is not None and gradient is not None:
            rows.add(one, gradient.to(wide))
    known = () if where is None else sums.relative.at(where)
    others = (*sums.learned, *(one for one in known if one is not None))
    for one, gradient in zip(others, found[4:], strict=True):
        if gradient is not None:
            one += gradient


def _leaves(given: Relative | None) -> Relative | None:
    """The same, for whose tensors a gradient may be asked."""
    if given is None:
        return None
    return Relative(*(None if each is None else each.detach().requires_grad_() for each in given))


def _moves(work: Work, learned: Sequence[Tensor]) -> bool:
    """Whether the bias depends on the queries or on anything learned."""
    held = (*learned, *(work.relative or ()))
    if any(each is not None and each.requires_grad for each in held):
        return True
    if Stage.SCORES not in work.position.stages or not work.asked.requires_grad:
        return False
    with torch.enable_grad():
        one = work.asked[:, :, :1].detach().requires_grad_()
        _, _, queries, keys = work.frame.indices()
        bias = work.position.bias(one, queries.flatten()[:1], keys.flatten()[:1], work.scale)
    return bias is not None and bias.requires_grad


def _by_products(work: Work, part: Part, learned: Sequence[Tensor]) -> bool:
    """Whether a few products give all the gradients of a part."""
    fixed = not work.mask.biased or not learned
    return fixed and not by_weights(work, part) and relative(work, part) is not None


def _small(work: Work, plan: Sequence[Part]) -> Iterator[Part]:
    """Chunks of which several things the size of the scores can be held at once."""
    for part in plan:
        yield from part.chunks(max(1, most(work, part) // 4))


def _delta(work: Work, given: Given, plan: Sequence[Part]) -> Tensor:
    """rowsum(dO O), (B, H, Lq, 1).

    A sum over a row of weights times an error of Δ is not small where the sum of dS itself is 0. So
    O is computed anew in half precision, whose rounding would add up; and where the weights are
    written out all the same, so that Δ has their very errors.
    """
    wide = softmax_dtype(work.q.dtype)
    if given.output.dtype == wide and Stage.VALUES not in work.position.stages:
        return (given.grad * given.output).sum(-1, keepdim=True)
    held = torch.zeros_like(given.logsumexp)
    for chunk in _small(work, plan):
        own = _own(given, chunk)
        output, _ = _exact(work, chunk, own, _rows(work, chunk), relative(work, chunk))
        chunk.queries.add(held, (own.grad * output).sum(-1, keepdim=True))
    return held


def _exact(
    work: Work,
    part: Part,
    own: Given,
    rows: Sequence[Tensor],
    given: Relative | None,
    *,
    still: bool = False,
) -> tuple[Tensor, Tensor]:
    """What a part adds to the output, and its weights, in the softmax dtype.

    Args:
        work: the attention.
        part: some blocks of it.
        own: their results.
        rows: their q, k, v and the queries as asked.
        given: what gives their bias, if it hangs on differences only.
        still: whether the output takes the weights as constants.
    """
    q, k, v, asked = rows
    extra = added(work, part, asked, given)
    shares = blocks.weights(q, k, extra.scores, own.logsumexp, work.scale)
    used = shares.detach() if still else shares
    output = blocks.mixed(used, v)
    if by_weights(work, part):
        output = output + values(work, part, used)
    return output, shares


def lonely(work: Work) -> bool:
    """Whether no query sees more than one key: its weight is 1, whatever the score."""
    return _lonely(work, planned(work, SIDE))


def _lonely(work: Work, plan: Sequence[Part]) -> bool:
    narrow = all(
        part.keys.size == 1 or (part.band is not None and len(part.band.allowed) == 1)
        for part in plan
    )
    return work.sinks is None and narrow and not any(part.layer for part in plan)


def _seen(given: Given) -> Given:
    """With logsumexp +inf on blind rows, (B, H, Lq, 1): their weights are 0."""
    sums = given.logsumexp.masked_fill(given.logsumexp == -torch.inf, torch.inf)
    return Given(given.grad, given.output, sums[..., None])


def _own(given: Given, part: Part) -> Given:
    take = part.queries.take
    return Given(take(given.grad), take(given.output), take(given.logsumexp)[..., 0])


def _rows(work: Work, part: Part) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Blocks of q, k, v, and the queries as asked."""
    queries, (k, v) = part.queries.take, map(part.keys.take, rows_of(work, part))
    return queries(work.q), k, v, queries(work.asked)
