"""Attention some rows of queries at a time: statistics of the weights without the weights.

A block of rows is finished, measured and let go before the next, so that memory is O(L) at any
length: the weights of at least 32 queries over all heads of one sample, which is half of what its
keys take at D = 64. Where a gradient is wanted a block is computed again for the backward pass; on
a CPU without one, `streamed` does the same in place and in fewer passes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.call import Call, Result, softmax_dtype
from headwise.engines import streamed
from headwise.engines.autograd_transforms import no_transform_rule, transformed, with_frozen_tensors
from headwise.engines.dropout import with_dropout
from headwise.engines.eager import grouped, logsumexp, masked, zero_masked_kv
from headwise.engines.sinks import apply_sinks
from headwise.engines.statistics import STATISTICS, measured, not_returned
from headwise.lang import Text
from headwise.masks import Mask
from headwise.masks.tiles import Tiles
from headwise.positions import Stage
from headwise.shapes import Allowed, Index

NAME = "rows"

OFFERED = ("logsumexp", *(name for name, _ in STATISTICS))
"""What it returns beside the output."""

AT_ONCE = 2**21
"""Scores of one block, where that is enough for the fewest rows."""

FEWEST, FEWEST_MOVING = 32, 128
"""Rows of a block; more where a position makes a bias for each block, which has its own cost."""

LARGE = 2**21
"""Scores from which blocks are faster as well: 8 MB of them, more than a cache holds."""


def why_not(call: Call) -> list[Text]:
    """Every reason why this engine cannot run the call."""
    rules = (
        ("weights" in call.need, Text("it never holds all weights, Lq x Lk numbers")),
        (0 in (*call.q.shape, *call.k.shape, *call.v.shape), Text("a size is 0")),
        (call.q.device.type == "meta", Text("the tensors hold no numbers")),
        (torch.compiler.is_compiling(), Text("it has no rule for torch.compile")),
        (transformed(call), no_transform_rule()),
    )
    reasons = [reason for holds, reason in rules if holds]
    return reasons + not_returned(call.need, (*OFFERED, "weights"))


def worthwhile(call: Call) -> bool:
    """Whether it is the better choice for a call that it can run: for what a large one needs."""
    frame = call.frame
    scores = frame.batch * frame.heads * frame.queries * frame.keys
    return bool(call.need) and scores >= LARGE


@dataclass(frozen=True)
class Block:
    """Some queries of some samples, and the keys that any of them may see.

    Attributes:
        samples, rows, keys: slices of B, Lq and Lk.
        full: whether every query of the block sees all of its keys.
    """

    samples: slice
    rows: slice
    keys: slice
    full: bool


def run(call: Call) -> Result:
    """Attention in O(Lq + Lk) memory, differentiable to any order; keys are not copied per head."""
    if call.dropout:
        return with_dropout(call, run)
    tiles = Tiles.of(call.mask, call.frame)
    seen = (tiles.seen()[1] > 0).to(call.q.device)  # (B or 1, H or 1, Lk)
    k, v = (call.k, call.v) if bool(seen.all()) else zero_masked_kv(call, seen[..., None, :])
    q, k = call.position.content(call.q, k, call.frame)
    whole = _empty(call)
    if not _differentiated(call) and q.device.type == "cpu":
        with torch.no_grad():
            streamed.run(call, q, k, v, tiles, whole)
        return whole
    if torch.is_grad_enabled():  # the gradients of all blocks are summed in float32 at least
        k, v = (each.to(softmax_dtype(each.dtype)) for each in (k, v))
    call = replace(call, position=with_frozen_tensors(call.position))
    for block in _blocks(call, tiles):
        _put(whole, block, _result(call, q, k, v, block))
    return whole


def _differentiated(call: Call) -> bool:
    """Whether anything may want a gradient."""
    made_of = [call.q, call.k, call.v, *call.position.parameters()]
    made_of += [] if call.sinks is None else [call.sinks]
    learned = call.mask.biased or any(each.requires_grad for each in made_of)
    return learned and torch.is_grad_enabled()


def block_size(call: Call) -> tuple[int, int]:
    """How many samples and rows a block has."""
    frame = call.frame
    fewest = FEWEST_MOVING if Stage.SCORES in call.position.stages else FEWEST
    rows = min(frame.queries, max(fewest, AT_ONCE // (frame.heads * frame.keys)))
    return max(1, AT_ONCE // (frame.heads * frame.keys * rows)), rows


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(at, min(at + size, length)) for at in range(0, length, size))


def _blocks(call: Call, tiles: Tiles) -> Iterator[Block]:
    """All blocks, each with no more keys than its tiles say it may see."""
    side, (samples, size) = tiles.side, block_size(call)
    for rows in _slices(call.frame.queries, size):
        kinds = tiles.kinds[rows.start // side : -(-rows.stop // side)]  # (n, key tiles)
        seen = kinds.amax(0).nonzero().flatten().tolist() or [0]
        first, last = seen[0], seen[-1] + 1
        keys = slice(first * side, min(last * side, call.frame.keys))
        full = bool((kinds[:, first:last] == 2).all())
        for some in _slices(call.frame.batch, samples):
            yield Block(some, rows, keys, full)


def _empty(call: Call) -> Result:
    """Room for the whole result: parts that are kept apart would lie scattered in memory."""
    frame, wide = call.frame, softmax_dtype(call.q.dtype)
    made = {
        name: call.q.new_zeros(
            (frame.batch, frame.heads, frame.keys if name == "received" else frame.queries),
            dtype=wide,
        )
        for name in OFFERED
        if name in call.need
    }
    return Result(call.q.new_zeros(*call.q.shape[:3], call.v.shape[3]), **made)


def _put(whole: Result, block: Block, part: Result) -> None:
    """Write a block's result where it belongs; what keys receive is added up."""
    for name in ("output", *OFFERED):
        found, place = getattr(part, name), getattr(whole, name)
        if name == "received" and found is not None:
            place[block.samples, :, block.keys] += found
        elif found is not None:
            place[block.samples, :, block.rows] = found


def _result(call: Call, q: Tensor, k: Tensor, v: Tensor, block: Block) -> Result:
    """One block; where a gradient may be wanted its scores are let go, to be made again."""
    if not torch.is_grad_enabled():
        return _attend(call, q, k, v, block)
    result: Result = checkpoint(
        _attend, call, q, k, v, block, use_reentrant=False, preserve_rng_state=False
    )
    return result


def _attend(call: Call, q: Tensor, k: Tensor, v: Tensor, block: Block) -> Result:
    """The output of some rows (B, H, n, Dv), and what else is needed of them."""
    k, v = (each[block.samples, :, block.keys].to(q.dtype) for each in (k, v))
    scores = grouped(q[block.samples, :, block.rows], k.transpose(-2, -1), call.group)
    scores = scores.to(softmax_dtype(scores.dtype)).mul_(call.scale)  # (B, H, n, m)
    b, h, query, key = _indices(call, block)
    places = query.flatten(), key.flatten()
    asked = call.q[block.samples, :, block.rows]
    for bias in (call.mask.bias(b, h, query, key), call.position.bias(asked, *places, call.scale)):
        scores = scores if bias is None else scores.add_(bias.to(scores.dtype))
    blind = torch.zeros_like(scores[..., :1], dtype=torch.bool)
    if not block.full:
        scores, blind = masked(scores, _allowed(call.mask, b, h, query, key))
    weights = scores.softmax(-1) if block.full else scores.softmax(-1).masked_fill(blind, 0.0)
    sums = logsumexp(scores, blind) if call.sums else None
    if sums is not None and call.sinks is not None:
        weights, sums = apply_sinks(weights, sums, call.sinks)
    mixed = grouped(weights.to(v.dtype), v, call.group)  # (B, H, n, Dv)
    added = call.position.values(weights.to(v.dtype), *places)
    found = measured(weights, call.need, *places)
    if sums is not None and "logsumexp" in call.need:
        found["logsumexp"] = sums
    return Result(mixed if added is None else mixed + added, **found)


def _indices(call: Call, block: Block) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """b (B,1,1,1), h (1,H,1,1), query positions (1,1,n,1) and keys (1,1,1,m) of a block."""
    b, h, query, key = call.frame.indices()
    return b[block.samples], h, query[:, :, block.rows], key[..., block.keys]


def _allowed(mask: Mask, b: Index, h: Index, query: Index, key: Index) -> Allowed:
    """The rule of a block written out, (B or 1, H or 1, n, m)."""
    allowed = mask.rule(b, h, query, key)
    allowed = allowed[(None,) * (4 - allowed.dim())]
    return allowed.expand(-1, -1, query.shape[2], key.shape[3])
