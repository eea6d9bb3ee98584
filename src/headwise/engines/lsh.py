"""Attention under an LSH mask, whose cost grows with the number of chunks, not with Lq Lk.

In each round, queries and keys are sorted by bucket, and each chunk of queries attends to two
chunks of keys through the fused kernel. The rounds are merged by their logsumexp; a pair counts in
the first round in which it meets. The forward and backward passes take O(L) memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from headwise.call import Call, Result, softmax_dtype
from headwise.engines import eager, kernel
from headwise.engines.autograd_transforms import (
    AttentionFunction,
    Tensors,
    needs_grad,
    no_transform_rule,
)
from headwise.engines.kernel import BackwardInputs
from headwise.engines.statistics import apply_sinks, not_returned, widen_for_sinks
from headwise.engines.tiled.decompose import conjuncts
from headwise.engines.tiled.problem import Problem
from headwise.lang import Text
from headwise.masks import Mask
from headwise.masks.patterns.lsh import Hashed
from headwise.positions import NoPosition

NAME = "lsh"

SHORT = 512  # number of keys below which all scores fit cheaply in memory
SHARE = 0.5  # the largest share of pairs in the chunks for which this engine is worthwhile

NUMBERS = 1 << 19
"""Numbers of the output that one kernel call computes; it reuses its buffers."""


def why_not(call: Call) -> Iterator[Text]:
    """Yield every reason why this engine cannot run the call."""
    one = len(_hashed(call.mask)) == 1
    if not one:
        yield Text("the mask is not one lsh(...), alone or combined with other masks by &")
    if "logsumexp" in call.need and needs_grad(call):
        yield Text("its logsumexp has no gradient; use torch.no_grad()")
    if call.dropout > 0:
        yield Text("it does not support dropout")
    if call.empty:
        yield Text("a size is 0")
    if call.position.acts_after_content:
        yield Text(
            "{name} adds to the scores or the values, but every head sorts the keys differently",
            name=type(call.position).__name__,
        )
    if one and call.bias_requires_grad():
        yield Text("the mask's bias needs a gradient")
    if call.score_mod is not None and call.score_mod_requires_grad():
        yield Text("score_mod reads a tensor that requires a gradient")
    if torch.compiler.is_compiling():
        yield Text("it does not support torch.compile")
    yield from no_transform_rule(call)
    yield from not_returned(call.need, ("logsumexp",))


def worthwhile(call: Call) -> bool:
    """Return whether the keys are not few and the chunks hold at most half of all pairs."""
    if call.shape.keys < SHORT or len(_hashed(call.mask)) != 1:
        return False
    return pairs(call) <= SHARE * call.shape.queries * call.shape.keys


def pairs(call: Call) -> int:
    """Return how many query-key pairs a head computes if every chunk is full."""
    (hashed,) = _hashed(call.mask)
    return call.shape.queries * min(2 * hashed.chunk, call.shape.keys) * hashed.keys.shape[2]


def run(call: Call) -> Result:
    """Compute attention round by round."""
    q, k = call.position.content(call.q, call.k, call.shape)
    problem = Problem(q, k, call.v, q, call.mask, call.position, call.scale, call.shape)
    clean = problem.zero_masked()
    (hashed,) = _hashed(call.mask)
    rest = tuple(mask for mask in conjuncts(call.mask) if mask is not hashed)
    width = call.v.shape[3]
    widest = max(q.shape[3], width)
    rows = (kernel.widened(t, widest) for t in widen_for_sinks(call, q, clean.k, clean.v))
    function = ChunkedAttention(call, hashed, rest)
    output, logsumexp = function((*(t.contiguous() for t in rows), call.sinks))
    sums = logsumexp.detach() if "logsumexp" in call.need else None
    return Result(output[..., :width].to(call.v.dtype), logsumexp=sums)


def _hashed(mask: Mask) -> list[Hashed]:
    return [part for part in conjuncts(mask) if isinstance(part, Hashed)]


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of queries and keys that meet in one round; index -1 means no row.

    Attributes:
        queries: (B, H, n, r), every query once.
        table: (B, H, n, 2 c), the keys of each block. If ``chained``, (B, H, n + 1, c), and the
            keys of block i are entries i and i + 1, so each key is read once and used twice.
        chained: which of the two layouts ``table`` has.
    """

    queries: Tensor
    table: Tensor
    chained: bool

    @classmethod
    def of(cls, mask: Hashed) -> "Blocks":
        """Return the blocks of a mask that has one round."""
        keys, home = _chunks(mask), mask.chunks[0][:, :, 0].long()
        group = home.shape[1] // keys.shape[1]
        queries, chunk = _sorted(home, keys.shape[2], min(mask.chunk, home.shape[2]))
        last = (mask.real.to(chunk.device).view(-1, 1, 1) - 1).clamp(min=0) // mask.chunk
        before = torch.where(chunk == 0, last, chunk - 1).masked_fill(last == 0, -1)
        in_order = torch.arange(keys.shape[2], device=keys.device)
        if group == 1 and chunk.shape[2] == len(in_order) and bool((chunk == in_order).all()):
            return cls(queries, torch.cat([_picked(keys, before[:, :, :1]), keys], 2), True)
        keys = keys.repeat_interleave(group, 1)
        table = torch.cat([_picked(keys, before), _picked(keys, chunk)], 3)
        return cls(queries, table, False)

    @property
    def keys(self) -> Tensor:
        """The keys of each block, (B, H, n, 2 c)."""
        return self._overlapping(self.table.contiguous())

    def pieces(self, pairs: int) -> Iterator["Blocks"]:
        """Yield the blocks in pieces of about ``pairs`` pairs for one sample and head."""
        width = self.table.shape[3] * (2 if self.chained else 1)
        many = max(1, pairs // (self.queries.shape[3] * width))
        for first in range(0, self.queries.shape[2], many):
            last = min(first + many, self.queries.shape[2])
            table = self.table[:, :, first : last + self.chained]
            yield Blocks(self.queries[:, :, first:last], table, self.chained)

    def take_keys(self, rows: Tensor) -> Tensor:
        """Return (B, G, Lk, D) as (B, H, n, 2 c, D), a view of overlapping blocks if chained."""
        return self._overlapping(take(rows, self.table))

    def key_numbers(self, numbers: Tensor) -> Tensor:
        """Return (B, G, Lk) as (B, H, n, 2 c), a view of overlapping blocks if chained."""
        return self._overlapping(take_numbers(numbers, self.table))

    def _overlapping(self, rows: Tensor) -> Tensor:
        if not self.chained:
            return rows
        batch, heads, n, size, *dim = rows.shape
        return rows.as_strided((batch, heads, n - 1, 2 * size, *dim), rows.stride())

    def add_keys(self, into: Tensor, blocks: Tensor) -> None:
        """Add (B, H, n, 2 c, D) to the rows of the contiguous tensor (B, G, Lk, D)."""
        if self.chained:
            size = self.table.shape[3]
            folded = blocks.new_zeros(*self.table.shape, blocks.shape[4])
            folded[:, :, :-1] += blocks[..., :size, :]
            folded[:, :, 1:] += blocks[..., size:, :]
            blocks = folded
        where, rows = _present(into, self.table, blocks)
        flat = into.view(-1, into.shape[3])
        flat.scatter_add_(0, where[:, None].expand_as(rows), rows)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Take rows of (B, X, L, D) at indices (B, H, n, r), as (B, H, n, r, D); -1 gives any row."""
    flat = _flat_index(rows, index.clamp(min=0)).flatten()
    return rows.flatten(0, 2).index_select(0, flat).view(*index.shape, rows.shape[3])


def take_numbers(numbers: Tensor, index: Tensor) -> Tensor:
    """Take numbers of (B, X, L) at indices (B, H, n, r); -1 gives any number."""
    shared = index.clamp(min=0).view(*numbers.shape[:2], -1)
    return numbers.gather(2, shared).view(index.shape)


def put(into: Tensor, index: Tensor, blocks: Tensor) -> None:
    """Write blocks into their rows of the contiguous tensor (B, X, L, D)."""
    where, rows = _present(into, index, blocks)
    into.view(-1, into.shape[3]).index_copy_(0, where, rows)


def _present(into: Tensor, index: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of the blocks whose index is not -1: indices in (B X L, D), and values."""
    where, rows = _flat_index(into, index).flatten(), blocks.flatten(0, 3).to(into.dtype)
    present = (index >= 0).flatten()
    return (where, rows) if bool(present.all()) else (where[present], rows[present])


def _flat_index(rows: Tensor, index: Tensor) -> Tensor:
    """Convert row indices in (B, X, L, D) to row indices in (B X L, D)."""
    batch, shared, length = rows.shape[:3]
    sample = torch.arange(batch, device=rows.device)[:, None] * shared
    head = torch.arange(index.shape[1], device=rows.device) // (index.shape[1] // shared)
    return (sample + head)[:, :, None, None] * length + index


def _chunks(mask: Hashed) -> Tensor:
    """Return the indices of the keys of each chunk, (B, G, m, c)."""
    places = mask.keys[:, :, 0].long()
    many = max(1, -(-int(mask.real.max()) // mask.chunk))
    size = min(mask.chunk, places.shape[2])
    slots = many * size
    table = places.new_full((*places.shape[:2], slots + 1), -1)
    table.scatter_(2, torch.where(places < 0, slots, places), _in_order(places))
    return torch.unflatten(table[..., :slots], 2, (many, size))


def _sorted(home: Tensor, many: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the queries in blocks of one chunk each, (B, H, n, size), and the chunk of each block.

    ``home`` is the chunk of each query, (B, H, Lq), out of ``many`` chunks.
    """
    order = home.argsort(dim=-1, stable=True)
    chunk = home.gather(-1, order)
    counts = home.new_zeros(*home.shape[:2], many).scatter_add_(-1, home, torch.ones_like(home))
    blocks = (counts + size - 1) // size
    within = _in_order(home) - (counts.cumsum(-1) - counts).gather(-1, chunk)
    number = (blocks.cumsum(-1) - blocks).gather(-1, chunk) + within // size
    most = int(blocks.sum(-1).max())
    queries = home.new_full((*home.shape[:2], most * size), -1)
    queries.scatter_(-1, number * size + within % size, order)
    chunks = home.new_full((*home.shape[:2], most), -1).scatter_(-1, number, chunk)
    return torch.unflatten(queries, 2, (most, size)), chunks


def _picked(keys: Tensor, which: Tensor) -> Tensor:
    """Take chunks of (B, H, m, c) by their indices (B, H, n), as (B, H, n, c); -1 has no key."""
    index = which.clamp(min=0)[..., None].expand(-1, -1, -1, keys.shape[3])
    return keys.gather(2, index).masked_fill(which[..., None] < 0, -1)


def _in_order(rows: Tensor) -> Tensor:
    """Return 0, 1, 2, ... along the last axis, in the shape of ``rows``."""
    return torch.arange(rows.shape[-1], device=rows.device).expand_as(rows)


@dataclass(frozen=True, eq=False)
class ChunkedAttention(AttentionFunction):
    """LSH attention as a function of contiguous q, k, v, and the sinks or None.

    Attributes:
        call: the attention; its q and k are not rotated, those of the function are.
        hashed: the part of the mask that determines which chunks meet.
        rest: the other masks, which must also allow a pair.
    """

    call: Call
    hashed: Hashed
    rest: tuple[Mask, ...]

    def forward(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        q, k, v, sinks = tensors
        wide = softmax_dtype(q.dtype)
        output = torch.empty(*q.shape[:3], v.shape[3], dtype=wide, device=q.device)
        sums = torch.empty(*q.shape[:3], 1, dtype=wide, device=q.device)
        for first, piece, added in self.pieces(self._pairs(v)):
            rows = take(q, piece.queries), piece.take_keys(k), piece.take_keys(v)
            results = _attend(rows, added, self.call.scale, self._score_function(piece))
            _merge(output, sums, piece.queries, results, first=first)
        output, logsumexp = apply_sinks(output, sums[..., 0], sinks)
        return output.to(v.dtype), logsumexp

    def plain(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        q, k, v, sinks = tensors
        need = frozenset({"logsumexp"})
        call = replace(self.call, q=q, k=k, v=v, sinks=sinks, position=NoPosition(), need=need)
        result = eager.run(call)
        assert result.logsumexp is not None  # noqa: S101 - it is needed
        return result.output, result.logsumexp

    def backward(self, tensors: Tensors, given: BackwardInputs, needed: Sequence[bool]) -> Tensors:
        q, k, v, _ = tensors
        sums = given.logsumexp.masked_fill(given.logsumexp == -torch.inf, torch.inf)[..., None]
        results = given.grad.contiguous(), given.output, sums
        dq, dk, dv = (torch.zeros_like(t, dtype=softmax_dtype(t.dtype)) for t in (q, k, v))
        for _, piece, added in self.pieces(self._pairs(v) // 2):
            own = (take(t, piece.queries) for t in (*results, q))
            rows = (*own, piece.take_keys(k), piece.take_keys(v))
            dout, out, lse, queries, keys, values = (t.flatten(0, 1) for t in rows)
            block = BackwardInputs(dout, out, lse[..., 0])
            terms = queries, keys, values, added, self.call.scale, self._score_function(piece)
            gradients = kernel.backward(block, *terms)
            from_q, from_k, from_v = (torch.unflatten(t, 0, q.shape[:2]) for t in gradients)
            put(dq, piece.queries, take(dq, piece.queries) + from_q)
            piece.add_keys(dk, from_k)
            piece.add_keys(dv, from_v)
        return dq, dk, dv

    def pieces(self, pairs: int) -> Iterator[tuple[bool, Blocks, Tensor | None]]:
        """Yield the blocks of all rounds in pieces of about ``pairs`` pairs per sample and head.

        Each item is whether it is the first round, the piece, and the term added to its scores, (B
        H, n, r, 2 c) or None.
        """
        chunks = (self.hashed.homes, *self.hashed.chunks)
        few = self.hashed.keys.shape[3] // self.hashed.chunk < torch.iinfo(torch.int16).max
        mask, wide = self.call.mask, softmax_dtype(self.call.q.dtype)
        for number in range(self.hashed.keys.shape[2]):
            before = [numbers[:, :, :number] for numbers in chunks]
            before = [numbers.to(torch.int16) for numbers in before] if few else before
            for piece in Blocks.of(self.hashed.rounds(number, number + 1)).pieces(pairs):
                bias = mask.bias(*self._indices(piece)) if mask.biased else None
                added = kernel.masked_bias(self._allowed(piece, *before), bias, wide)
                yield not number, piece, None if added is None else added.flatten(0, 1)

    def _allowed(
        self, piece: Blocks, homes: Tensor, own: Tensor, previous: Tensor
    ) -> Tensor | None:
        """Return which pairs of a piece are computed in this round, or None for all pairs.

        ``homes``, ``own`` and ``previous`` are chunks in the earlier rounds: of each key (B, G,
        rounds, Lk), of each query (B, H, rounds, Lq), and the chunk before that.
        """
        queries, keys = piece.queries[..., None], piece.keys[:, :, :, None]
        rules = [mask.rule(*self._indices(piece)) for mask in self.rest]
        rules += [rows >= 0 for rows in (queries, keys) if bool((rows < 0).any())]
        met: Tensor | None = None
        for number in range(homes.shape[2]):
            of_keys = piece.key_numbers(homes[:, :, number])[:, :, :, None]
            for chunks in (own, previous):
                equal = take_numbers(chunks[:, :, number], piece.queries)[..., None] == of_keys
                met = equal if met is None else met.logical_or_(equal)
        if met is not None:
            rules.append(met.logical_not_())
        if not rules:
            return None
        return reduce(torch.logical_and, rules).expand(*piece.queries.shape, keys.shape[4])

    def _indices(self, piece: Blocks) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return b (B,1,1,1,1), h (H,1,1,1), query positions (B,H,n,r,1), keys (B,H,n,1,2c)."""
        shape, device = self.call.shape, piece.queries.device
        b = torch.arange(shape.batch, device=device).view(-1, 1, 1, 1, 1)
        h = torch.arange(shape.heads, device=device).view(-1, 1, 1, 1)
        queries = piece.queries[..., None].clamp(min=0) + shape.offset
        return b, h, queries, piece.keys[:, :, :, None].clamp(min=0)

    def _score_function(self, piece: Blocks) -> kernel.Modify:
        """Return the call's function of the scaled scores of a piece, (B H, n, r, 2 c)."""
        function = self.call.score_function
        if function is None:
            return None
        indices, sizes = self._indices(piece), (-1, self.call.shape.heads)
        return lambda scores: function(torch.unflatten(scores, 0, sizes), *indices).flatten(0, 1)

    def _pairs(self, v: Tensor) -> int:
        """Return how many pairs per sample and head to compute at once, for O(L) memory."""
        rows = NUMBERS // (self.call.shape.batch * self.call.shape.heads * v.shape[3])
        return max(1, rows) * 2 * self.hashed.chunk


def _attend(
    rows: tuple[Tensor, Tensor, Tensor], added: Tensor | None, scale: float, function: kernel.Modify
) -> tuple[Tensor, Tensor]:
    """Return the output (B, H, n, r, Dv) and logsumexp (B, H, n, r, 1), -inf if fully masked."""
    q, k, v = (t.flatten(0, 1) for t in rows)
    output, logsumexp = kernel.forward(q, k, v, added, scale, function)
    if added is not None and bool(((logsumexp == 0) | (logsumexp == -torch.inf)).any()):
        # The fused kernel returns 0 for a fully masked row, so check the rows only if there is a 0.
        logsumexp = logsumexp.masked_fill((added == -torch.inf).all(-1), -torch.inf)
    shape = rows[0].shape[:2]
    return torch.unflatten(output, 0, shape), torch.unflatten(logsumexp, 0, shape)[..., None]


def _merge(
    output: Tensor, sums: Tensor, queries: Tensor, results: tuple[Tensor, Tensor], *, first: bool
) -> None:
    """Write the results of the first round; merge those of later rounds by the logsumexps."""
    new, new_sum = results
    if not first:
        old_sum = take(sums, queries)
        share = torch.sigmoid(new_sum - old_sum)
        share = share.masked_fill(new_sum == -torch.inf, 0.0)  # both may be -inf
        new = take(output, queries).lerp_(new.to(output.dtype), share)
        new_sum = torch.logaddexp(old_sum, new_sum)
    put(output, queries, new)
    put(sums, queries, new_sum)
