"""Blocks of query rows, and the arithmetic of one block.

`query_blocks` yields blocks of rows with the range of keys that they may attend to, from the tiles
of the mask. `scaled_scores`, `softmax_weights` and `weighted_values` compute the scores, weights
and output of one block. They are differentiable, and write into the memory ``out`` if it is passed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from headwise.call import Call
from headwise.engines.statistics import key_share
from headwise.masks.tiles import Tiles


@dataclass(frozen=True)
class QueryBlock:
    """Some query rows, and the range of keys that they may attend to.

    Attributes:
        rows: slice of Lq.
        keys: slice of Lk; no row may attend to a key outside.
        masked: slices of ``keys``, counted from its start, in which the mask must be evaluated;
            every row may attend to all other keys of the block.
    """

    rows: slice
    keys: slice
    masked: tuple[slice, ...]

    @property
    def pairs(self) -> int:
        """The number of scores of one head."""
        return length(self.rows) * length(self.keys)


def query_blocks(
    tiles: Tiles, lengths: tuple[int, int], limit: int, rows: Callable[[int], int]
) -> Iterator[QueryBlock]:
    """Yield blocks that hold every query row once, in order.

    The sequences have ``lengths`` = Lq, Lk. At most ``limit`` rows, rounded to whole tiles, share
    one range of keys; a block with n keys has at most rows(n) rows.
    """
    side, (queries, keys) = tiles.side, lengths
    step = max(1, limit // side)
    for top in range(0, len(tiles.kinds), step):
        kinds = tiles.kinds[top : top + step]
        seen = kinds.amax(0).nonzero().flatten().tolist() or [0]
        first, stop = seen[0] * side, min((seen[-1] + 1) * side, keys)
        mixed = (kinds.amin(0) < 2)[seen[0] : seen[-1] + 1].tolist()
        masked = tuple(_runs(mixed, side, stop - first))
        start, end = top * side, min((top + step) * side, queries)
        size = max(1, min(end - start, rows(stop - first)))
        for at in range(start, end, size):
            yield QueryBlock(slice(at, min(at + size, end)), slice(first, stop), masked)


def block_indices(
    call: Call, samples: slice, block: QueryBlock
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return b (b,1,1,1), h (1,H,1,1), query positions (1,1,n,1) and keys (1,1,1,m) of a block."""
    b, h, query, key = call.shape.indices()
    return b[samples], h, query[:, :, block.rows], key[..., block.keys]


def scaled_scores(q: Tensor, k: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Return q kᵀ · scale, (B, H, n, m), in the dtype of q (B, H, n, D) and k (B, G, m, D).

    The scores are written to the beginning of ``out``, if passed: one axis of B H n m numbers.
    """
    (batch, heads, rows, _), keys = q.shape, k.shape[2]
    folded, k = _fold_heads(q, k.shape[1]), k.flatten(0, 1)  # (B G, H / G n, D), (B G, m, D)
    size = (k.shape[0], folded.shape[1], keys)
    if out is None:
        place, added = None, q.new_zeros(()).expand(size)
    else:
        place = added = out[: batch * heads * rows * keys].view(size)
    if not scale and q.dtype == torch.bfloat16:  # `baddbmm` leaves these products unwritten
        zeros = q.new_zeros(size) if place is None else place.zero_()
        return zeros.view(batch, heads, rows, keys)
    scores = torch.baddbmm(added, folded, k.mT, beta=0, alpha=scale, out=place)
    return scores.view(batch, heads, rows, keys)


def softmax_weights(
    scores: Tensor,
    sinks: Tensor | None = None,
    fully_masked: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the softmax over the keys, (B, H, n, m), and over a sink of each head, (H,).

    Masked scores must be -inf, except in the rows where ``fully_masked``, (B or 1, H or 1, n, 1),
    is True: there they must be finite, and the weights become 0. The weights are written to the
    beginning of ``out``, if passed.
    """
    place = None if out is None else out[: scores.numel()].view(scores.shape)
    weights = torch.softmax(scores, -1, out=place)
    if sinks is not None:
        share = key_share(scores.logsumexp(-1), sinks)[..., None]
        weights = weights * share if out is None else weights.mul_(share)
    if fully_masked is not None:
        fill = weights.masked_fill if out is None else weights.masked_fill_
        weights = fill(fully_masked, 0.0)
    return weights


def weighted_values(weights: Tensor, v: Tensor) -> Tensor:
    """Return weights (B, H, n, m) times values (B, G, m, Dv), as (B, H, n, Dv)."""
    batch, heads, rows, _ = weights.shape
    output = torch.bmm(_fold_heads(weights, v.shape[1]), v.flatten(0, 1))
    return output.view(batch, heads, rows, v.shape[3])


def length(positions: slice) -> int:
    """Return the number of positions in a slice that has both ends."""
    return int(positions.stop - positions.start)


def _fold_heads(rows: Tensor, groups: int) -> Tensor:
    """Return (B, H, n, X) as (B G, H / G n, X): the rows of heads that share a key/value head."""
    batch, heads, count, width = rows.shape
    return rows.reshape(batch * groups, heads // max(groups, 1) * count, width)


def _runs(flags: list[bool], side: int, stop: int) -> Iterator[slice]:
    """Yield the runs of neighbouring flagged tiles as slices of keys."""
    start = 0
    for flag, tiles in groupby(flags):
        end = start + len(list(tiles))
        if flag:
            yield slice(start * side, min(end * side, stop))
        start = end
