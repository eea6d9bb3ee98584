"""Statistics of the weights without a gradient: in two buffers, in as few passes as there can be.

A block is some queries of one head or a few. Its scores s are made by a matrix product into one
buffer, and their softmax w into another; m is the largest score of a row, a the largest weight, and
f the part of a row that a sink leaves to its keys, 1 without one. Everything is a sum over w:

    output f Σ w v    received Σ_i f w    largest f a    logsumexp m - log a
    entropy f (-log a - log f - Σ w (s - m))    distance f Σ w |i - j|

No weight has a logarithm of its own, and no term of the entropy is negative, so that nothing
cancels. A mask is written out only where a tile is mixed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.call import Call, Result, softmax_dtype
from headwise.engines import sinks
from headwise.masks.tiles import Tiles
from headwise.positions import Stage

AT_ONCE = 2**20
"""Scores of one block: few enough for a cache, and enough for every thread."""

MOST, FEWEST = 256, 32
"""Rows of a block."""

ALIGNED = 16
"""Numbers after which memory is as well aligned as at its beginning."""


def _length(places: slice) -> int:
    return int(places.stop - places.start)


@dataclass(frozen=True)
class Stripe:
    """Some queries, the keys that any of them may see, and where they may not see all.

    Attributes:
        rows, keys: slices of Lq and Lk.
        mixed: slices within ``keys`` where the rule decides.
    """

    rows: slice
    keys: slice
    mixed: tuple[slice, ...]

    @property
    def pairs(self) -> int:
        """How many scores a head has here."""
        return _length(self.rows) * _length(self.keys)


@dataclass(frozen=True, eq=False)
class Seen:
    """What the mask says of a stripe for one sample.

    Attributes:
        hidden: for each of the mixed slices who may not, (1, H or 1, n, m').
        blind: which rows see nothing, (1, H or 1, n, 1); None where none is.
    """

    hidden: tuple[Tensor, ...]
    blind: Tensor | None


@dataclass(frozen=True, eq=False)
class Rows:
    """One block while it is computed: the sums that all statistics are made of, (h, n, 1).

    Attributes:
        below: s - m, (h, n, m).
        weights: w, (h, n, m); of a blind row nobody's.
        top: m.
        largest: a.
        kept: f; 0 where blind.
        blind: which rows see nothing, or None.
    """

    below: Tensor
    weights: Tensor
    top: Tensor
    largest: Tensor
    kept: Tensor
    blind: Tensor | None


def run(call: Call, q: Tensor, k: Tensor, v: Tensor, tiles: Tiles, whole: Result) -> None:
    """Write the output and the statistics of all rows.

    Args:
        call: the attention.
        q: the queries as they meet in the scores.
        k: the keys, 0 where nobody sees them.
        v: the values, 0 there too.
        tiles: those of its mask.
        whole: room for the result, all zeros.
    """
    stripes = list(_stripes(call, tiles))
    room = max(_heads(call, stripe) * stripe.pairs for stripe in stripes)
    buffers = [q.new_empty(room, dtype=softmax_dtype(q.dtype)) for _ in "sw"]
    for stripe in stripes:
        apart = _apart(call, stripe) if "distance" in call.need else None
        size, once = _heads(call, stripe), _seen_by_all(call, stripe)
        for sample in range(call.frame.batch):
            own_q, own_k, own_v = (_alike(t[sample]) for t in (q, k, v))
            seen = once or _seen(call, stripe, sample)
            bias = _bias(call, stripe, sample)
            for first in range(0, call.frame.heads, size):
                heads = slice(first, min(first + size, call.frame.heads))
                scores, weights = (_shaped(each, heads, stripe) for each in buffers)
                _score(call, scores, own_q, own_k, heads, stripe)
                if bias is not None:
                    scores += bias[0, heads] if len(bias[0]) > 1 else bias[0]
                rows = _summed(call, scores, weights, _of(seen, heads), heads, stripe)
                _write(call, whole, rows, own_v, apart, (sample, heads, stripe))


def _alike(sample: Tensor) -> Tensor:
    """A sample that begins in memory as every other does, so that products round alike."""
    return sample if sample.numel() % ALIGNED == 0 else sample.clone()


def _stripes(call: Call, tiles: Tiles) -> Iterator[Stripe]:
    """All rows, each stripe with no more keys than its tiles say it may see."""
    side, frame = tiles.side, call.frame
    step = max(1, MOST // side)
    for top in range(0, len(tiles.kinds), step):
        kinds = tiles.kinds[top : top + step]
        seen = kinds.amax(0).nonzero().flatten().tolist() or [0]
        first, stop = seen[0] * side, min((seen[-1] + 1) * side, frame.keys)
        open_ = (kinds.amin(0) < 2)[seen[0] : seen[-1] + 1].tolist()
        mixed = tuple(_runs(open_, side, stop - first))
        start, end = top * side, min((top + step) * side, frame.queries)
        rows = _rows(call, stop - first, end - start)
        for at in range(start, end, rows):
            yield Stripe(slice(at, min(at + rows, end)), slice(first, stop), mixed)


def _rows(call: Call, keys: int, most: int) -> int:
    """Rows of a stripe; a position looks at all heads at once."""
    acts = {Stage.SCORES, Stage.VALUES} & call.position.stages
    scores = AT_ONCE // (keys * (call.frame.heads if acts else 1))
    return min(most, max(FEWEST, scores))


def _heads(call: Call, stripe: Stripe) -> int:
    """How many heads a block has."""
    if Stage.VALUES in call.position.stages:
        return call.frame.heads
    return min(call.frame.heads, max(1, AT_ONCE // stripe.pairs))


def _runs(flags: list[bool], side: int, stop: int) -> Iterator[slice]:
    """Where flags are set, runs of neighbours together, in keys."""
    start = None
    for number, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = number
        elif not flag and start is not None:
            yield slice(start * side, min(number * side, stop))
            start = None


def _shaped(buffer: Tensor, heads: slice, stripe: Stripe) -> Tensor:
    """The buffer's beginning as (h, n, m)."""
    count = _length(heads)
    return buffer[: count * stripe.pairs].view(count, _length(stripe.rows), -1)


def _seen_by_all(call: Call, stripe: Stripe) -> Seen | None:
    """What the mask says, where that is the same for all samples; else None."""
    if call.mask.by_distance or not stripe.mixed:
        return _seen(call, stripe, 0)
    return None


def _seen(call: Call, stripe: Stripe, sample: int) -> Seen:
    b, h, query, key = call.frame.indices()
    b, query = b[sample : sample + 1], query[:, :, stripe.rows]
    hidden = []
    for each in stripe.mixed:
        columns = key[..., stripe.keys][..., each]
        allowed = _spread(call.mask.rule(b, h, query, columns), query, columns)
        hidden.append(~allowed)
    if sum(map(_length, stripe.mixed)) < _length(stripe.keys):
        return Seen(tuple(hidden), None)  # the other keys are seen by all rows
    blind = torch.ones_like(hidden[0][..., :1])
    for unseen in hidden:
        blind = blind & unseen.all(-1, keepdim=True)
    return Seen(tuple(hidden), blind)


def _spread(pairs: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """(1, H or 1, n, m), whatever a rule or a bias left to broadcasting."""
    pairs = pairs[(None,) * (4 - pairs.dim())]
    return pairs.expand(-1, -1, query.shape[2], key.shape[3])


def _of(seen: Seen, heads: slice) -> Seen:
    """What is said of some heads, without the axis of samples."""

    def chosen(each: Tensor) -> Tensor:
        return each[0, heads] if each.shape[1] > 1 else each[0]

    blind = None if seen.blind is None else chosen(seen.blind)
    return replace(seen, hidden=tuple(map(chosen, seen.hidden)), blind=blind)


def _bias(call: Call, stripe: Stripe, sample: int) -> Tensor | None:
    """What is added to the scores of a stripe, (1, H or 1, n, m), or None."""
    if not call.biased:
        return None
    b, h, query, key = call.frame.indices()
    query, key = query[:, :, stripe.rows], key[..., stripe.keys]
    fixed = call.mask.bias(b[sample : sample + 1], h, query, key)
    asked = call.q[sample : sample + 1, :, stripe.rows]
    moving = call.position.bias(asked, query.flatten(), key.flatten(), call.scale)
    found = [_spread(each, query, key) for each in (fixed, moving) if each is not None]
    return sum(found[1:], found[0]) if found else None


def _score(call: Call, scores: Tensor, q: Tensor, k: Tensor, heads: slice, stripe: Stripe) -> None:
    """The scaled products of a block into (h, n, m); q (H, Lq, D), k (G, Lk, D)."""
    for number, head in enumerate(range(heads.start, heads.stop)):
        rows, keys = q[head, stripe.rows], k[head // call.group, stripe.keys]
        rows, keys = rows.to(scores.dtype), keys.to(scores.dtype)
        into = scores[number]
        torch.addmm(into, rows, keys.t(), beta=0, alpha=call.scale, out=into)


def _summed(
    call: Call, scores: Tensor, weights: Tensor, seen: Seen, heads: slice, stripe: Stripe
) -> Rows:
    """The softmax of a block and what its sums need; the scores are used up."""
    for where, hidden in zip(stripe.mixed, seen.hidden, strict=True):
        scores[..., where].masked_fill_(hidden, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    if seen.blind is not None:
        top.masked_fill_(seen.blind, 0.0)
    below = scores.sub_(top)
    if stripe.mixed or call.biased:
        below.clamp_(min=torch.finfo(scores.dtype).min)  # 0 times it is 0
    torch.softmax(below, -1, out=weights)
    largest = weights.amax(-1, keepdim=True)
    kept = torch.ones_like(largest)
    if call.sinks is not None:
        kept = sinks.share((top - largest.log())[None, ..., 0], call.sinks[heads])[0, ..., None]
    if seen.blind is not None:
        kept = kept.masked_fill(seen.blind, 0.0)
    return Rows(below, weights, top, largest, kept, seen.blind)


def _write(
    call: Call,
    whole: Result,
    rows: Rows,
    v: Tensor,
    away: Tensor | None,
    where: tuple[int, slice, Stripe],
) -> None:
    """What a block gives, to where it belongs; below and weights are used up."""
    sample, heads, stripe = where
    place = (sample, heads, stripe.rows)
    kept = rows.kept
    whole.output[place] = _mixed(call, rows, v, heads, stripe).to(whole.output.dtype)
    if whole.received is not None:
        gets = whole.received[sample, heads, stripe.keys]
        for number, weights in enumerate(rows.weights):
            gets[number].addmv_(weights.t(), kept[number, :, 0])
    if whole.largest is not None:
        whole.largest[place] = (kept * rows.largest)[..., 0]
    if whole.logsumexp is not None:
        whole.logsumexp[place] = _logsumexp(call, rows, heads)
    if whole.entropy is not None:
        apart = rows.below.mul_(rows.weights).sum(-1, keepdim=True)
        if rows.blind is not None:  # there it may have overflown
            apart.masked_fill_(rows.blind, 0.0)
        found = kept * (0.0 - (rows.largest.log() + _logarithm(kept) + apart))
        whole.entropy[place] = found[..., 0]
    if whole.distance is not None and away is not None:
        far = torch.mul(rows.weights, away, out=rows.below).sum(-1, keepdim=True)
        whole.distance[place] = (far * kept)[..., 0]


def _mixed(call: Call, rows: Rows, v: Tensor, heads: slice, stripe: Stripe) -> Tensor:
    """The output of a block, (h, n, Dv); v (G, Lk, Dv)."""
    weights = rows.weights
    mixed = weights.new_empty(*weights.shape[:2], v.shape[-1])
    for number, head in enumerate(range(heads.start, heads.stop)):
        values = v[head // call.group, stripe.keys].to(weights.dtype)
        torch.mm(weights[number], values, out=mixed[number])
    mixed *= rows.kept
    if Stage.VALUES in call.position.stages:
        _, _, query, key = call.frame.indices()
        places = query.flatten()[stripe.rows], key.flatten()[stripe.keys]
        added = call.position.values((weights * rows.kept)[None], *places)
        mixed = mixed if added is None else mixed + added[0]
    return mixed


def _logarithm(kept: Tensor) -> Tensor:
    """log of what is kept, 0 where nothing is: it counts nothing there."""
    return kept.masked_fill(kept == 0, 1.0).log()


def _logsumexp(call: Call, rows: Rows, heads: slice) -> Tensor:
    sums = (rows.top - rows.largest.log())[..., 0]
    if rows.blind is not None:
        sums = sums.masked_fill(rows.blind[..., 0], -torch.inf)
    return sums if call.sinks is None else sinks.total(sums[None], call.sinks[heads])[0]


def _apart(call: Call, stripe: Stripe) -> Tensor:
    """|i - j|, (n, m)."""
    query, key = call.places()
    away = query[stripe.rows, None] - key[stripe.keys]
    return away.abs().to(softmax_dtype(call.q.dtype))
