"""Masks by hashing: queries attend to the keys of their hash bucket, as in the Reformer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.masks.arguments import Content, needs_operator
from headwise.masks.mask import Mask
from headwise.shapes import AttentionShape, Index, Truth, check_boolean, check_integer

MOST, MOST_AT_ONCE = 2**24, 2**12  # the most buckets of one round and of one rotation
ALONE = 64  # the most buckets of one rotation by default; more come from two rotations
AT_ONCE = 2**20  # numbers of one block of rotated rows, which fit in a CPU cache
LAST = -1e5  # the bias on the query's own key if ``own`` is False


@dataclass(frozen=True, repr=False, eq=False)
class Hashed(Mask):
    """The mask of `lsh` bound to the q and k of one call.

    A place is an index in the order of the keys sorted by bucket, then by position.
    """

    keys: Tensor  # (B, G, rounds, Lk), the place of each key, -1 if the key is hidden
    queries: Tensor  # (B, H, rounds, Lq), the place of a key with the query's bucket and position
    real: Tensor  # (B,), the number of keys that are not hidden
    chunk: int  # number of places in a chunk
    offset: int
    own: bool  # whether a query may attend to its own key as to any other key

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        group = self.queries.shape[1] // max(self.keys.shape[1], 1)
        row, shared = q - self.offset, h // max(group, 1)
        cached = not torch.compiler.is_dynamo_compiling()  # which rejects cached_property
        homes, (same, before) = (self.homes, self.chunks) if cached else self._placed()
        seen = torch.zeros((), dtype=torch.bool, device=k.device)
        for number in range(self.keys.shape[2]):
            key_chunk = homes[:, :, number][b, shared, k]
            for chunks in (same, before):
                seen = seen | (key_chunk == chunks[:, :, number][b, h, row])
        return seen

    def bias(self, b: Index, h: Index, q: Index, k: Index) -> Tensor | None:
        return None if self.own else torch.where(q == k, LAST, 0.0)

    @property
    def biased(self) -> bool:
        return not self.own

    @property
    def name(self) -> str:
        return f"lsh(<{self.keys.shape[2]} rounds in chunks of {self.chunk}>)"

    @cached_property
    def homes(self) -> Tensor:
        """The chunk of each key, (B, G, rounds, Lk); -1 if the key is hidden."""
        return self._placed()[0]

    @cached_property
    def chunks(self) -> tuple[Tensor, Tensor]:
        """The chunk of each query and the chunk before it; the last chunk precedes the first."""
        return self._placed()[1]

    def _placed(self) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        homes = torch.div(self.keys, self.chunk, rounding_mode="floor")
        same = torch.div(self.queries, self.chunk, rounding_mode="floor")
        last = torch.div((self.real - 1).clamp(min=0), self.chunk, rounding_mode="floor")
        before = torch.where(same == 0, last.view(-1, 1, 1, 1).to(same.dtype), same - 1)
        return homes, (same, before)

    def rounds(self, first: int, last: int) -> "Hashed":
        """Return this mask with rounds first to last - 1 only."""
        keys, queries = self.keys[:, :, first:last], self.queries[:, :, first:last]
        return replace(self, keys=keys, queries=queries)


@dataclass(frozen=True, repr=False)
class Lsh(Mask):
    """The mask of `lsh`; `bind` hashes the q and k of a call."""

    content_dependent = True
    count: int
    chunk: int
    buckets: tuple[int, ...] | None
    seed: int
    own: bool

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        raise BadValue(
            "lsh: this mask depends on the queries and keys of a call; pass it to "
            "attend(...), or draw it for random queries and keys with mask.draw(length)"
        )

    def bias(self, b: Index, h: Index, q: Index, k: Index) -> Tensor | None:
        return None if self.own else torch.where(q == k, LAST, 0.0)

    @property
    def biased(self) -> bool:
        return not self.own

    @property
    def name(self) -> str:
        buckets = "" if self.buckets is None else f", buckets={list(self.buckets)}"
        own = "" if self.own else ", own=False"
        return f"lsh({self.count}, chunk={self.chunk}{buckets}, seed={self.seed}{own})"

    @torch.no_grad()
    def bind(self, content: Content) -> Mask:
        if not needs_operator():
            return self.hash(content)
        factors, offset = list(self.buckets or ()), content.shape.offset
        setting = (offset, self.count, self.chunk, factors, self.seed)
        q, k = content.q.detach(), content.k.detach()
        keys, queries, real = hashed(q, k, content.real, *setting)
        return Hashed(keys, queries, real, self.chunk, offset, self.own)

    def hash(self, content: Content) -> Hashed:
        """Return the result of `bind`, computed without the custom operator."""
        shape, groups, device = content.shape, content.k.shape[1], content.k.device
        sizes = ((groups, self.count, shape.keys), (shape.heads, self.count, shape.queries))
        keys, queries = (
            torch.empty(shape.batch, *size, dtype=torch.int32, device=device) for size in sizes
        )
        counts = content.counts()
        for count in sorted(set(counts)):
            if counts.count(count) == len(counts):
                self._order(content, count, keys, queries)
                continue
            chosen = [sample for sample, number in enumerate(counts) if number == count]
            parts = keys[chosen], queries[chosen]
            self._order(content.samples(chosen), count, *parts)
            keys[chosen], queries[chosen] = parts
        real = torch.tensor(counts, dtype=torch.int64, device=device)
        return Hashed(keys, queries, real, self.chunk, shape.offset, self.own)

    def _order(self, content: Content, count: int, keys: Tensor, queries: Tensor) -> None:
        """Write the places of samples that have ``count`` real keys each."""
        factors = _factors(self.buckets, count, self.chunk)
        directions = self._directions(factors, content.k)
        of_q, of_k = (_buckets(rows, directions, factors) for rows in (content.q, content.k))
        for number, pair in enumerate(zip(of_q, of_k, strict=True)):
            codes = _codes(content, *pair)
            order = codes[1].argsort(dim=-1)  # (B, G, Lk)
            places = torch.empty_like(order).scatter_(-1, order, _range_like(order))
            keys[:, :, number] = places.masked_fill(places >= count, -1)
            if torch.equal(*codes):  # shared QK: every query has the place of its key
                queries[:, :, number] = places
                continue
            grouped = torch.unflatten(codes[0], 1, (codes[1].shape[1], -1)).flatten(2)
            places = torch.searchsorted(codes[1].gather(-1, order), grouped)
            queries[:, :, number] = places.clamp(max=max(count - 1, 0)).view_as(codes[0])

    def _directions(self, factors: tuple[int, ...], k: Tensor) -> Tensor:
        """Draw random axes (G, n, D) in float32 at least: f / 2 for each factor f of each round."""
        axes = list[Tensor]()
        for number in range(self.count):
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            shapes = [(k.shape[1], factor // 2, k.shape[3]) for factor in factors]
            axes += [torch.randn(shape, generator=generator) for shape in shapes]
        return torch.cat(axes, 1).to(k.device, torch.promote_types(k.dtype, torch.float32))


@torch.library.custom_op("headwise::lsh", mutates_args=())
def hashed(
    q: Tensor,
    k: Tensor,
    real: Tensor | None,
    offset: int,
    count: int,
    chunk: int,
    buckets: Sequence[int],
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the fields keys, queries and real of `Hashed`, as one node of a graph."""
    shape = AttentionShape(q.shape[0], q.shape[1], q.shape[2], k.shape[2], offset, q.device)
    mask = Lsh(count, chunk, tuple(buckets) or None, seed, own=True)
    result = mask.hash(Content(q, k, shape, real))
    return result.keys, result.queries, result.real


@hashed.register_fake
def _(
    q: Tensor, k: Tensor, real: object, offset: object, count: int, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    del real, offset
    keys, queries = (
        rows.new_empty((*rows.shape[:2], count, rows.shape[2]), dtype=torch.int32)
        for rows in (k, q)
    )
    return keys, queries, q.new_empty(q.shape[:1], dtype=torch.int64)


@hashed.register_vmap
def _(
    info: Any, axes: tuple[int | None, ...], *arguments: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Fold the mapped axis into the batch."""
    count = info.batch_size

    def flat(rows: Tensor | None, axis: int | None) -> Tensor | None:
        """Return (B, ...), mapped along an axis or the same for all, as (n B, ...)."""
        if rows is None:
            return None
        expanded = rows.expand(count, *rows.shape) if axis is None else rows.movedim(axis, 0)
        return expanded.flatten(0, 1)

    tensors = [flat(rows, axis) for rows, axis in zip(arguments[:3], axes, strict=False)]
    parts = hashed(*tensors, *arguments[3:])
    return tuple(part.unflatten(0, (count, -1)) for part in parts), (0, 0, 0)


def lsh(
    rounds: int,
    *,
    seed: int,
    chunk: int = 64,
    buckets: int | Sequence[int] | None = None,
    own: bool = True,
) -> Mask:
    """Let each query attend to the keys whose direction is close to its own, found by hashing.

    In each round, a random rotation assigns keys and queries to buckets: bucket j is the direction,
    among all rotated axes and their opposites, that is nearest. The keys are sorted by bucket, then
    by position, and cut into chunks. A query attends to the chunk where a key with its bucket and
    position would be, and to the chunk before it; the last chunk precedes the first. A key that
    meets a query in several rounds counts once.

    * q and k may differ and are not normalised. If k is the normalised q (shared QK), this is the
      Reformer's pattern. Only directions, after a rotary position, are hashed, with no gradient.
    * ``causal() & lsh(...)`` hides later keys, but the ends of chunks depend on all keys: a later
      token may change *which* earlier keys are allowed.
    * ``padding(lengths) & lsh(...)``: keys that the other mask hides from all queries are sorted
      last and belong to no chunk. This holds for `padding`, tensors, and masks by distance such
      as `causal`. A key hidden in another way, or only by two masks together, is hashed like any
      other key and moves the chunks, even if it is NaN: use `padding` for it.

    Args:
        rounds: the number of rotations, at least 1. With more rounds, fewer near keys are missed.
        seed: the seed of the rotations, at least 0. The same seed and input give the same pattern.
        chunk: the number of keys in a chunk, at least 1; 64 in the paper.
        buckets: an even number; or even factors of the number, with one rotation for each factor,
            which is faster for many buckets. None means the paper's 2 n / chunk for n keys that are
            not hidden, rounded up, as one factor up to 64 and as two beyond.
        own: if False, a query attends to its own key only if no other key is allowed: the
            Reformer's rule for shared QK. It adds -1e5 to that score, so ``|`` and ``~`` are
            refused.

    Raises:
        BadType, BadValue: if an argument is not an integer, is too small or odd, or ``own`` is not
            a boolean.

    Source: Kitaev et al. 2020 (Reformer), section 2; n_buckets and n_hashes there are ``buckets``
    and ``rounds``. A pair met in several rounds counts once (the paper's N_i,j); transformers
    counts it each time.

    Example:
        >>> import headwise as hw
        >>> x = torch.randn(1, 1, 7, 5)
        >>> hw.attend(x, x, x, mask=hw.causal() & lsh(2, chunk=3, seed=0)).shape
        torch.Size([1, 1, 7, 5])
        >>> rows = lsh(1, chunk=3, seed=0).draw(12).splitlines()
        >>> [row.count("■") for row in rows]  # the chunk of three, and the one before
        [6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6]
    """
    rounds = check_integer("lsh", "rounds", rounds, 1, Text("4 is usual"))
    chunk = check_integer("lsh", "chunk", chunk, 1, Text("64 is usual"))
    seed = check_integer("lsh", "seed", seed, 0, Text("any integer works"))
    check_boolean("lsh", "own", own, Text("False masks the own key if possible"))
    return Lsh(rounds, chunk, _checked_buckets(buckets), seed, own)


def _checked_buckets(buckets: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if buckets is None:
        return None
    listed = isinstance(buckets, Sequence) and not isinstance(buckets, str)
    factors: tuple[int, ...] = tuple(buckets) if listed else (buckets,)  # type: ignore
    usual = Text("None means 2 Lk / chunk")
    factors = tuple(check_integer("lsh", "buckets", factor, 2, usual) for factor in factors)
    uneven = not factors or any(factor % 2 for factor in factors)
    if uneven or max(factors) > MOST_AT_ONCE or math.prod(factors) > MOST:
        raise BadValue(
            "lsh: buckets must be even, at most {most_at_once} per rotation and {most} in "
            "total, got {buckets!r}; give more as factors, as in buckets=[64, 128]",
            most_at_once=MOST_AT_ONCE,
            most=MOST,
            buckets=buckets,
        )
    return factors


def _factors(buckets: tuple[int, ...] | None, count: int, chunk: int) -> tuple[int, ...]:
    """Return the caller's factors, or the default factors for ``count`` keys."""
    if buckets is not None:
        return buckets
    wanted = 2 * count / chunk
    if wanted <= ALONE:
        return (_even(wanted),)
    first = _even(math.sqrt(wanted))
    return first, _even(wanted / first)


def _even(number: float) -> int:
    return max(2, 2 * math.ceil(number / 2))


def _buckets(rows: Tensor, directions: Tensor, factors: tuple[int, ...]) -> Tensor:
    """Return the buckets of (B, X, L, D) by the axes (G, n, D) of all rounds: (rounds, B, X, L)."""
    own = directions.repeat_interleave(rows.shape[1] // max(directions.shape[0], 1), 0)
    few = max(1, AT_ONCE // max(1, rows.shape[0] * rows.shape[1] * own.shape[1]))
    halves = [factor // 2 for factor in factors]
    rounds = own.shape[1] // sum(halves)
    buckets = rows.new_zeros((rounds, *rows.shape[:3]), dtype=torch.int64)
    for first in range(0, rows.shape[2], few):
        turned = own @ rows[:, :, first : first + few].detach().to(own.dtype).mT
        digits = [_nearest(part) for part in torch.split(turned, halves * rounds, 2)]
        for number, digit in enumerate(digits):
            block = buckets[number // len(factors), :, :, first : first + few]
            block.mul_(factors[number % len(factors)]).add_(digit)
    return buckets


def _nearest(turned: Tensor) -> Tensor:
    """Return the index of the nearest of the axes (B, X, half, L), then of their opposites.

    A loop over the axes is several times faster than PyTorch's argmax.
    """
    most, place = turned[:, :, 0].abs(), torch.zeros_like(turned[:, :, 0], dtype=torch.int32)
    for axis in range(1, turned.shape[2]):
        size = turned[:, :, axis].abs()
        place.masked_fill_(size > most, axis)
        torch.maximum(most, size, out=most)
    opposite = torch.gather(turned, 2, place[:, :, None].long())[:, :, 0] < 0
    return place + opposite * turned.shape[2]


def _codes(content: Content, of_q: Tensor, of_k: Tensor) -> tuple[Tensor, Tensor]:
    """Return bucket and position as one number, by which queries and keys are sorted in a round."""
    shape, real = content.shape, content.real
    first = min(0, shape.offset)
    span = max(shape.keys, shape.queries + shape.offset) - first
    if real is not None:
        of_k = of_k.masked_fill(~real[:, None], MOST)
    query = _range_like(of_q) + shape.offset - first
    return of_q * span + query, of_k * span + _range_like(of_k) - first


def _range_like(rows: Tensor) -> Tensor:
    """Return 0, 1, 2, ... along the last axis, in the shape of ``rows``."""
    return torch.arange(rows.shape[-1], device=rows.device).expand_as(rows)
