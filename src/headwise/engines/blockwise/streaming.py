"""Statistics of the weights without gradients: in two buffers, in as few passes as possible.

A block is some queries of one or several heads. A matrix product writes its scores s into one
buffer, softmax writes their weights w into the other. With m the largest score of a row, a its
largest weight, and f the share that its sink leaves to the keys, every result is a sum over w:

    output f Σ w v    received Σ_i f w    largest f a    logsumexp m - log a
    entropy f (-log a - log f - Σ w (s - m))    distance f Σ w |i - j|

No weight needs its own logarithm and no term of the entropy is negative, so nothing cancels. A mask
is evaluated only in mixed tiles.
"""

from collections.abc import Iterator
from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.call import Call, Result, softmax_dtype
from headwise.engines.autograd_transforms import without_autocast
from headwise.engines.blockwise.blocks import (
    QueryBlock,
    block_indices,
    length,
    query_blocks,
    scaled_scores,
    softmax_weights,
    weighted_values,
)
from headwise.engines.statistics import key_share, logsumexp_with_sinks
from headwise.masks.tiles import Tiles
from headwise.positions import Stage

BLOCK_SCORES = 2**20  # scores of one block: they fit in a CPU cache and keep every thread busy
MAX_ROWS, MIN_ROWS = 256, 32  # rows of a block
ALIGNMENT = 16  # memory is aligned after every multiple of this many numbers


class Masking(NamedTuple):
    """The mask of a block for one sample.

    Attributes:
        hidden: for each masked slice of the block, True where not allowed, (1, H or 1, n, m').
        fully_masked: True for rows without an allowed key, (1, H or 1, n, 1), or None.
    """

    hidden: list[Tensor]
    fully_masked: Tensor | None


class Softmax(NamedTuple):
    """The terms of a block's statistics, with shape (h, n, 1) unless noted.

    Attributes:
        below: s - m, (h, n, m).
        weights: w, (h, n, m); undefined in a fully masked row.
        top: m.
        largest: a.
        share: f; 0 in a fully masked row.
        fully_masked: (h or 1, n, 1), or None.
    """

    below: Tensor
    weights: Tensor
    top: Tensor
    largest: Tensor
    share: Tensor
    fully_masked: Tensor | None


def run(call: Call, q: Tensor, k: Tensor, v: Tensor, tiles: Tiles, result: Result) -> None:
    """Write the output and the statistics of all rows to ``result``, which holds zeros.

    q and k are rotated; k and v are 0 at keys that no query attends to.
    """
    lengths = call.shape.queries, call.shape.keys
    blocks = list(query_blocks(tiles, lengths, MAX_ROWS, lambda keys: _row_limit(call, keys)))
    size = max(_head_limit(call, block) * block.pairs for block in blocks)
    dtype = softmax_dtype(q.dtype)
    buffers = q.new_empty(size, dtype=dtype), q.new_empty(size, dtype=dtype)
    with without_autocast(q):
        for block in blocks:
            _run_block(call, (q, k, v), block, buffers, result)


def _run_block(
    call: Call,
    qkv: tuple[Tensor, Tensor, Tensor],
    block: QueryBlock,
    buffers: tuple[Tensor, Tensor],
    result: Result,
) -> None:
    """Write the results of some rows, for all samples and heads."""
    wide = buffers[0].dtype
    distances = None
    if "distance" in call.need:
        query, key = call.position_ids()
        distances = (query[block.rows, None] - key[block.keys]).abs().to(wide)  # (n, m)
    shared = _masking(call, block, 0) if call.mask.by_distance or not block.masked else None
    for sample in range(call.shape.batch):
        q, k, v = (rows[sample : sample + 1] for rows in qkv)
        # align every sample in memory, so that products round alike in all samples
        q, k, v = (x if x.numel() % ALIGNMENT == 0 else x.clone() for x in (q, k, v))
        masking = shared or _masking(call, block, sample)
        bias = _bias(call, block, sample)
        for heads in _head_slices(call, _head_limit(call, block)):
            groups = slice(heads.start // call.group, (heads.stop - 1) // call.group + 1)
            queries, keys = q[:, heads, block.rows].to(wide), k[:, groups, block.keys].to(wide)
            scores = scaled_scores(queries, keys, call.scale, buffers[0])[0]
            if call.score_function is not None:
                b, h, *places = block_indices(call, slice(sample, sample + 1), block)
                scores.copy_(call.score_function(scores[None], b, h[:, heads], *places)[0])
            if bias is not None:
                scores += _heads_of(bias, heads)
            softmax = _softmax(call, scores, buffers[1], masking, block, heads)
            place = sample, heads, block
            _store(call, result, softmax, v[:, groups, block.keys], distances, place)


def _row_limit(call: Call, keys: int) -> int:
    """Return the most rows of a block; a position that adds terms needs all heads at once."""
    adds = call.position.acts_after_content
    return max(MIN_ROWS, BLOCK_SCORES // (keys * (call.shape.heads if adds else 1)))


def _head_limit(call: Call, block: QueryBlock) -> int:
    if Stage.VALUES in call.position.stages:
        return call.shape.heads
    return min(call.shape.heads, max(1, BLOCK_SCORES // block.pairs))


def _head_slices(call: Call, limit: int) -> Iterator[slice]:
    """Yield slices of at most ``limit`` heads: part of a group, or whole groups."""
    step = max(call.group, limit // call.group * call.group)
    for start in range(0, call.shape.heads, step):
        stop = min(start + step, call.shape.heads)
        for first in range(start, stop, min(limit, step)):
            yield slice(first, min(first + min(limit, step), stop))


def _masking(call: Call, block: QueryBlock, sample: int) -> Masking:
    b, h, query, key = block_indices(call, slice(sample, sample + 1), block)
    hidden = []
    for part in block.masked:
        columns = key[..., part]
        hidden.append(~_expanded(call.mask.rule(b, h, query, columns), query, columns))
    if sum(map(length, block.masked)) < length(block.keys):
        return Masking(hidden, None)  # every row may attend to the keys outside `masked`
    return Masking(hidden, reduce(and_, (pairs.all(-1, keepdim=True) for pairs in hidden)))


def _expanded(pairs: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return a rule or a bias, which may broadcast, as (1, H or 1, n, m)."""
    pairs = pairs[(None,) * (4 - pairs.dim())]
    return pairs.expand(-1, -1, query.shape[2], key.shape[3])


def _heads_of(values: Tensor, heads: slice) -> Tensor:
    """Select some heads of (1, H or 1, n, m) values, as (h or 1, n, m)."""
    return values[0, heads] if values.shape[1] > 1 else values[0]


def _bias(call: Call, block: QueryBlock, sample: int) -> Tensor | None:
    """Return the bias on the scores of a block, (1, H or 1, n, m), or None."""
    if not call.biased:
        return None
    b, h, query, key = block_indices(call, slice(sample, sample + 1), block)
    of_mask = call.mask.bias(b, h, query, key)
    raw_queries = call.q[sample : sample + 1, :, block.rows]
    of_position = call.position.bias(raw_queries, query.flatten(), key.flatten(), call.scale)
    terms = [_expanded(x, query, key) for x in (of_mask, of_position) if x is not None]
    return sum(terms[1:], terms[0]) if terms else None


def _softmax(
    call: Call, scores: Tensor, buffer: Tensor, masking: Masking, block: QueryBlock, heads: slice
) -> Softmax:
    """Compute the softmax of a block; this overwrites ``scores``."""
    for part, hidden in zip(block.masked, masking.hidden, strict=True):
        scores[..., part].masked_fill_(_heads_of(hidden, heads), -torch.inf)
    full = None if masking.fully_masked is None else _heads_of(masking.fully_masked, heads)
    top = scores.amax(-1, keepdim=True)
    if full is not None:
        top.masked_fill_(full, 0.0)
    below = scores.sub_(top)
    if block.masked or call.biased:
        below.clamp_(min=torch.finfo(scores.dtype).min)  # finite, so that 0 times this is 0
    weights = softmax_weights(below, out=buffer)
    largest = weights.amax(-1, keepdim=True)
    share = torch.ones_like(largest)
    if call.sinks is not None:
        share = key_share((top - largest.log())[None, ..., 0], call.sinks[heads])[0, ..., None]
    if full is not None:
        share = share.masked_fill(full, 0.0)
    return Softmax(below, weights, top, largest, share, full)


def _store(
    call: Call,
    result: Result,
    softmax: Softmax,
    v: Tensor,
    distances: Tensor | None,
    where: tuple[int, slice, QueryBlock],
) -> None:
    """Write the results of a block to their place; overwrite `Softmax.below` and the weights."""
    sample, heads, block = where
    place, share = (sample, heads, block.rows), softmax.share
    result.output[place] = _output(call, softmax, v, block).to(result.output.dtype)
    if result.received is not None:
        received = result.received[sample, heads, block.keys]
        for head, weights in enumerate(softmax.weights):
            received[head].addmv_(weights.t(), share[head, :, 0])
    if result.largest is not None:
        result.largest[place] = (share * softmax.largest)[..., 0]
    if result.logsumexp is not None:
        sums = (softmax.top - softmax.largest.log())[..., 0]
        if softmax.fully_masked is not None:
            sums = sums.masked_fill(softmax.fully_masked[..., 0], -torch.inf)
        sinks = None if call.sinks is None else call.sinks[heads]
        result.logsumexp[place] = logsumexp_with_sinks(sums[None], sinks)[0]
    if result.entropy is not None:
        below = softmax.below.mul_(softmax.weights).sum(-1, keepdim=True)
        if softmax.fully_masked is not None:  # the sum may have overflowed in these rows
            below.masked_fill_(softmax.fully_masked, 0.0)
        log_share = share.masked_fill(share == 0, 1.0).log()
        entropy = share * (0.0 - (softmax.largest.log() + log_share + below))
        result.entropy[place] = entropy[..., 0]
    if result.distance is not None and distances is not None:
        mean = torch.mul(softmax.weights, distances, out=softmax.below).sum(-1, keepdim=True)
        result.distance[place] = (mean * share)[..., 0]


def _output(call: Call, softmax: Softmax, v: Tensor, block: QueryBlock) -> Tensor:
    """Return the output of a block, (h, n, Dv), from values v (1, G, m, Dv)."""
    weights = softmax.weights
    output = weighted_values(weights[None], v.to(weights.dtype))[0].mul_(softmax.share)
    if Stage.VALUES in call.position.stages:
        query, key = call.position_ids()
        places = query[block.rows], key[block.keys]
        added = call.position.values((weights * softmax.share)[None], *places)
        output = output if added is None else output + added[0]
    return output
