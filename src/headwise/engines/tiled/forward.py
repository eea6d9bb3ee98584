"""The output and the logsumexp, a part at a time."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines.dropping import drops
from headwise.engines.sinks import sunk
from headwise.engines.tiled import blocks, kernel
from headwise.engines.tiled.far import NEAR, planned, rows_of
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.scores import Added, added, fixed, moves, values
from headwise.engines.tiled.visible import finite, without_hidden
from headwise.engines.tiled.work import Work
from headwise.positions import Stage
from headwise.shapes import Frame

SIDE = 64
"""Rows of a block of queries."""

SCORES = 1 << 22
"""Scores that may be written out at once, over all samples and heads."""

MOVING = 1 << 21
"""The same where a position's bias is made for each of them."""

DROPPED = 1 << 19
"""Pairs of which it is counted at once whether dropout leaves them: few enough for a cache."""

ROWS = 1 << 21
"""Numbers of the output that one kernel call gives."""


def forward(work: Work) -> tuple[Tensor, Tensor]:
    """Output (B, H, Lq, Dv) and logsumexp (B, H, Lq), -inf where blind without a sink."""
    output, logsumexp = _run(work)
    if not finite(output):  # perhaps by a key that nobody sees
        output, logsumexp = _run(without_hidden(work))
    return output, logsumexp


def _run(work: Work) -> tuple[Tensor, Tensor]:
    shape, wide = work.q.shape[:3], softmax_dtype(work.q.dtype)
    plan = planned(work, SIDE)
    merges = any(part.layer for part in plan)
    output = work.v.new_empty(*shape, work.v.shape[3], dtype=wide if merges else work.v.dtype)
    logsumexp = work.q.new_empty(*shape, 1, dtype=wide)
    if not covers(plan, work.frame):
        output.zero_()
        logsumexp.fill_(-torch.inf)
    for part in plan:
        for chunk, extra in pieces(work, part, most(work, part)):
            _merge(output, logsumexp, chunk, _results(work, chunk, extra))
            del extra  # before the next is made
    sums = logsumexp[..., 0]
    if work.sinks is not None:
        output, sums = sunk(output, sums, work.sinks)
    return output.to(work.v.dtype), sums


def covers(plan: Sequence[Part], frame: Frame) -> bool:
    """Whether the first layer writes every query."""
    rows = sum(part.queries.count * part.queries.size for part in plan if not part.layer)
    return rows == frame.queries


def pieces(work: Work, part: Part, limit: int) -> Iterator[tuple[Part, Added]]:
    """The part in chunks, with what the scores of each get: computed once where it is the same."""
    once = None
    if fixed(work, part) and part.queries.size * part.keys.size <= limit:
        once = added(work, part.blocks(0, 1), part.queries.take(work.asked))
    for chunk in part.chunks(limit):
        yield chunk, once or added(work, chunk, chunk.queries.take(work.asked))


def most(work: Work, part: Part, numbers: int = ROWS) -> int:
    """How many pairs of a part to compute at once, so that memory stays O(L).

    Args:
        work: the attention.
        part: of it.
        numbers: of the output that one kernel call may give.
    """
    heads = work.frame.batch * work.frame.heads
    rows = max(1, numbers // (heads * work.v.shape[3])) * part.keys.size
    if drops(work.mask):
        return max(1, min(DROPPED // heads, rows))
    known = kernel.fused(work.q) and not work.mask.biased
    written = not known or moves(work, part) or by_weights(work, part)
    if written:
        return max(1, min((MOVING if moves(work, part) else SCORES) // heads, rows))
    return max(1, rows if part.mask is None else min(SCORES, rows))


def by_weights(work: Work, part: Part) -> bool:
    """Whether the weights of a part are needed, which the fused kernel does not give."""
    return part.place == NEAR and Stage.VALUES in work.position.stages


def _results(work: Work, part: Part, extra: Added) -> tuple[Tensor, Tensor]:
    """Output (B, H, n, r, Dv) and logsumexp (B, H, n, r, 1) over the keys of the part."""
    q, (k, v) = part.queries.take(work.q), map(part.keys.take, rows_of(work, part))
    output, logsumexp = blocks.forward(q, k, v, extra.scores, work.scale)
    if by_weights(work, part):
        safe = logsumexp if extra.blind is None else logsumexp.masked_fill(extra.blind, torch.inf)
        shares = blocks.weights(q, k, extra.scores, safe, work.scale)
        output = output + values(work, part, shares).to(output.dtype)
    if extra.blind is not None:
        logsumexp = logsumexp.masked_fill(extra.blind, -torch.inf)
    return output, logsumexp[..., None]


def _merge(output: Tensor, logsumexp: Tensor, part: Part, new: tuple[Tensor, Tensor]) -> None:
    """Write a part of the first layer; weigh any other against what stands there."""
    more, its_sum = new
    if not part.layer:
        part.queries.put(output, more)
        part.queries.put(logsumexp, its_sum)
        return
    old, old_sum = part.queries.take(output), part.queries.take(logsumexp)
    total = torch.logaddexp(old_sum, its_sum)
    floor = torch.where(total == -torch.inf, 0.0, total)
    share = (its_sum - floor).exp()
    part.queries.put(output, torch.lerp(old, more.to(old.dtype), share))
    part.queries.put(logsumexp, total)
