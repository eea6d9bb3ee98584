"""Attention in blocks of query rows: statistics of the weights in O(Lq + Lk) memory.

Each block is computed, measured and freed before the next: the weights of at least 32 queries over
all heads of one sample, half the size of its keys at D = 64. If gradients are enabled, blocks are
recomputed in the backward pass; without gradients on a CPU, `streaming` uses two buffers.

    blocks      the blocks, and the arithmetic of one
    streaming   all statistics of a block in few passes, without gradients
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.call import Call, Result, softmax_dtype
from headwise.engines.autograd_transforms import needs_grad, no_transform_rule, with_frozen_tensors
from headwise.engines.blockwise import streaming
from headwise.engines.blockwise.blocks import (
    QueryBlock,
    block_indices,
    query_blocks,
    scaled_scores,
    softmax_weights,
    weighted_values,
)
from headwise.engines.dropout import with_dropout
from headwise.engines.eager import zero_masked_kv
from headwise.engines.statistics import STATISTICS, logsumexp_with_sinks, measured, not_returned
from headwise.lang import Text
from headwise.masks.arguments import without_numbers
from headwise.masks.tiles import Tiles
from headwise.positions import Stage

NAME = "rows"

RETURNED = ("logsumexp", *(name for name, _ in STATISTICS))  # results besides the output
BLOCK_SCORES = 2**21  # number of scores in one block, unless `MIN_ROWS` needs more

MIN_ROWS, MIN_ROWS_BIASED = 32, 128
"""The fewest rows of a block; more if each block computes a position's bias, at a fixed cost."""

LARGE = 2**21  # number of scores from which blocks are faster: 8 MB exceed a CPU cache


def why_not(call: Call) -> Iterator[Text]:
    """Yield every reason why this engine cannot run the call."""
    if "weights" in call.need:
        yield Text("it never stores all Lq x Lk weights")
    if call.empty:
        yield Text("a size is 0")
    if without_numbers(call.q):
        yield Text("the tensors hold no numbers")
    if torch.compiler.is_compiling():
        yield Text("it does not support torch.compile")
    yield from no_transform_rule(call)
    yield from not_returned(call.need, (*RETURNED, "weights"))


def worthwhile(call: Call) -> bool:
    """Return whether the call is large and needs more than the output."""
    shape = call.shape
    scores = shape.batch * shape.heads * shape.queries * shape.keys
    return bool(call.need) and scores >= LARGE


def run(call: Call) -> Result:
    """Compute attention in O(Lq + Lk) memory, differentiable to any order; copy no k per head."""
    if call.dropout:
        return with_dropout(call, run)
    tiles = Tiles.of(call.mask, call.shape)
    seen = (tiles.seen()[1] > 0).to(call.q.device)  # (B or 1, H or 1, Lk)
    k, v = (call.k, call.v) if bool(seen.all()) else zero_masked_kv(seen, call.k, call.v)
    q, k = call.position.content(call.q, k, call.shape)
    statistics = {}
    for name in call.need & set(RETURNED):
        length = call.shape.keys if name == "received" else call.shape.queries
        sizes = call.shape.batch, call.shape.heads, length
        statistics[name] = q.new_zeros(sizes, dtype=softmax_dtype(call.q.dtype))
    output = call.q.new_zeros(*call.q.shape[:3], call.v.shape[3])
    result = Result(output, **statistics)  # the blocks are written into these tensors
    learned = torch.is_grad_enabled() and (call.mask.biased or needs_grad(call))
    if not learned and q.device.type == "cpu":
        with torch.no_grad():
            streaming.run(call, q, k, v, tiles, result)
        return result
    attend: Callable[..., Result] = _attend
    if torch.is_grad_enabled():  # the gradients of all blocks are summed in float32 at least
        k, v = (rows.to(softmax_dtype(rows.dtype)) for rows in (k, v))
        attend = partial(checkpoint, _attend, use_reentrant=False, preserve_rng_state=False)
    call = replace(call, position=with_frozen_tensors(call.position))
    samples, size = block_size(call)
    lengths = call.shape.queries, call.shape.keys
    for block in query_blocks(tiles, lengths, size, lambda _: size):
        for first in range(0, call.shape.batch, samples):
            some = slice(first, min(first + samples, call.shape.batch))
            _store(result, some, block, attend(call, (q, k, v), some, block))
    return result


def block_size(call: Call) -> tuple[int, int]:
    """Return the number of samples and of rows in a block."""
    shape = call.shape
    fewest = MIN_ROWS_BIASED if Stage.SCORES in call.position.stages else MIN_ROWS
    rows = min(shape.queries, max(fewest, BLOCK_SCORES // (shape.heads * shape.keys)))
    return max(1, BLOCK_SCORES // (shape.heads * shape.keys * rows)), rows


def _store(result: Result, samples: slice, block: QueryBlock, part: Result) -> None:
    """Write the result of a block to its place; add to the attention that keys receive."""
    for name in ("output", *RETURNED):
        values, place = getattr(part, name), getattr(result, name)
        if name == "received" and values is not None:
            place[samples, :, block.keys] += values
        elif values is not None:
            place[samples, :, block.rows] = values


def _attend(
    call: Call, qkv: tuple[Tensor, Tensor, Tensor], samples: slice, block: QueryBlock
) -> Result:
    """Compute the output of some rows, (B, H, n, Dv), and their statistics."""
    q = qkv[0][samples, :, block.rows]
    k, v = (rows[samples, :, block.keys].to(q.dtype) for rows in qkv[1:])
    scores = scaled_scores(q, k, call.scale)
    scores = scores.to(softmax_dtype(scores.dtype))  # (B, H, n, m)
    indices = block_indices(call, samples, block)
    places = indices[2].flatten(), indices[3].flatten()
    raw_queries = call.q[samples, :, block.rows]
    if call.score_function is not None:
        scores = call.score_function(scores, *indices).clone()  # biases are added in place
    for bias in (call.mask.bias(*indices), call.position.bias(raw_queries, *places, call.scale)):
        scores = scores if bias is None else scores.add_(bias.to(scores.dtype))
    fully_masked = None
    if block.masked:
        allowed = call.mask.rule(*indices)
        allowed = allowed[(None,) * (4 - allowed.dim())]
        fully_masked = ~allowed.any(-1, keepdim=True).expand(-1, -1, scores.shape[2], -1)
        scores = torch.where(allowed, scores, torch.where(fully_masked, 0.0, -torch.inf))
    weights = softmax_weights(scores, call.sinks, fully_masked)
    statistics = measured(weights, call.need, *places)
    if "logsumexp" in call.need:
        sums = scores.logsumexp(-1)
        sums = sums if fully_masked is None else sums.masked_fill(fully_masked[..., 0], -torch.inf)
        statistics["logsumexp"] = logsumexp_with_sinks(sums, call.sinks)
    output = weighted_values(weights.to(v.dtype), v)
    added = call.position.values(weights.to(v.dtype), *places)
    return Result(output if added is None else output + added, **statistics)
