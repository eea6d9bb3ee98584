"""The gradients of a part whose bias looks at the query and the difference, in a few products.

For weights P = exp(scores - logsumexp), dV = Pᵀ dO and dS = P (dO Vᵀ - Δ + dlogsumexp). The bias of
a pair stands askew in the products of queries and vectors, so its gradient is dS put there: with dE
(n, T), 0 elsewhere, the queries get dE R · scale, their shift the sum of that, the vectors
dEᵀ q · scale, the numbers the sums of its columns. Nothing is larger than the scores of the part.
"""

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines.tiled.far import rows_of
from headwise.engines.tiled.kernel import Given, grouped
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.scores import added, differences, folded, relative, unfolded
from headwise.engines.tiled.sums import Sums
from headwise.engines.tiled.work import Work
from headwise.positions.relative import askew


def add_by_products(
    sums: Sums, work: Work, part: Part, own: Given, held: Tensor, *, still: bool, whole: bool
) -> None:
    """Add what some blocks contribute.

    Args:
        sums: what is added to.
        work: the attention.
        part: the blocks, for which `relative` gives the bias.
        own: their results.
        held: Δ - dlogsumexp, (B, H, Lq, 1).
        still: whether the output takes the weights as constants.
        whole: whether the blocks have all keys that their queries see: Δ is then taken of the very
            numbers it is subtracted from, so that a row of dS sums to 0 as it should.
    """
    q, asked = (folded(part.queries.take(rows)) for rows in (work.q, work.asked))
    k, v = (folded(part.keys.take(rows)) for rows in rows_of(work, part))
    grad = folded(own.grad).to(softmax_dtype(work.q.dtype))
    shares = _weights(work, part, own, q, k)  # (N, H, r, m)
    scores = _moved(shares, grad, v, folded(part.queries.take(held)), still, whole)
    samples, (from_keys, from_values) = work.frame.batch, sums.rows(part)
    part.keys.add(from_values, unfolded(_each_key(shares, grad, v.shape[1]), samples))
    del shares
    wide = scores.dtype
    part.queries.add(sums.q, unfolded(grouped(scores, k.to(wide)) * work.scale, samples))
    part.keys.add(
        from_keys, unfolded(_each_key(scores, q.to(wide), k.shape[1], work.scale), samples)
    )
    _add_bias(sums, work, part, asked, scores)


def _weights(work: Work, part: Part, own: Given, q: Tensor, k: Tensor) -> Tensor:
    """P, (N, H, r, m), with few things of its size beside it."""
    extra = added(work, part, part.queries.take(work.asked)).scores
    wide = softmax_dtype(q.dtype)
    scores = grouped(q.to(wide) * work.scale, k.to(wide).mT)
    if extra is not None:
        scores += folded(extra.expand(work.frame.batch, -1, part.queries.count, -1, -1))
    return scores.sub_(folded(own.logsumexp[..., None])).exp_()


def _moved(
    shares: Tensor, grad: Tensor, v: Tensor, held: Tensor, still: bool, whole: bool
) -> Tensor:
    """dS, (N, H, r, m)."""
    if still:
        return -shares * held
    values = grouped(grad, v.to(grad.dtype).mT)
    if whole:
        held = held + over((values * shares).sum(-1, keepdim=True), shares.sum(-1, keepdim=True))
    return values.sub_(held).mul_(shares)


def over(total: Tensor, shares: Tensor) -> Tensor:
    """The mean that weights of a row have given as a total; 0 where no key is seen."""
    return total / torch.where(shares == 0, 1.0, shares)


def _each_key(pairs: Tensor, rows: Tensor, groups: int, scale: float = 1.0) -> Tensor:
    """pairsᵀ rows · scale, summed over the heads of a group: (N, G, m, X)."""
    samples, _, _, keys = pairs.shape
    pairs = pairs.reshape(samples, groups, -1, keys)
    return pairs.mT @ (rows * scale).reshape(samples, groups, -1, rows.shape[3])


def _add_bias(sums: Sums, work: Work, part: Part, asked: Tensor, scores: Tensor) -> None:
    """Add what the bias of dS (N, H, r, m) has from the queries as asked, vectors and numbers."""
    given, where = relative(work, part), differences(work, part)
    if given is None or where is None:
        raise ValueError("tiled: a part whose blocks differ in their differences")
    products, (vectors, shift, numbers) = _spread(scores), sums.relative
    if vectors is not None and given.vectors is not None:
        shared = products.reshape(given.vectors.shape[0], -1, products.shape[3])
        rows = (shared @ given.vectors * work.scale).view(*products.shape[:3], -1)
        if sums.asked is not None:
            part.queries.add(sums.asked, unfolded(rows.transpose(0, 1), work.frame.batch))
        vectors[:, where] += ((given.rows(asked) * work.scale).mT @ shared).mT
        if shift is not None:
            shift += rows.sum((1, 2))
    if numbers is not None:
        numbers[:, where] += products.sum((1, 2))


def _spread(scores: Tensor) -> Tensor:
    """What `askew` shows as the scores (N, H, r, m), and 0 where it does not look: (H, N, r, T)."""
    samples, heads, rows, keys = scores.shape
    products = scores.new_zeros(heads, samples, rows, rows + keys - 1)
    askew(products.transpose(0, 1), rows).copy_(scores)
    return products
