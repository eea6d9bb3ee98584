"""The properties of a block of queries that do not depend on weights: allowed keys, their kinds.

Layers of a model with the same mask share these properties.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headwise.heads.metrics.query_facts import NAMES, Pairs, Queries, concatenated, fact, period

NEAR = 16  # the largest distance at which keys before and after a query are looked up one by one
EARLY = 64  # T, the number of first keys and queries that are early
SIZE = 16  # the number of keys of a block
FIRST_KEY, STRIPE_KEY = -2, -1  # the indices of the last two `singles`


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyContext(Queries):
    """The keys that the R queries of a block may attend to.

    The context stores K of the Lk keys; it can leave out keys at both ends to which no query of the
    block may attend. The number of a key is its index among all Lk keys.

    Attributes:
        allowed: (B, H or 1, R, K), True where a query may attend.
        counts: (B, R), True for queries that count, False on padding.
        position: (R,), the number of the key at the position of each query; None in
            cross-attention, where distance has no meaning.
        first: (B,), the number of the first key that is not padding.
        separators: (B, Lk), True on special tokens such as [SEP]; None if unknown.
        tokens: (B, Lk), the token ids of the keys, -1 on padding; None if unknown.
        punctuation: (B, Lk), True on punctuation; None if unknown.
        origin: the number of the first stored key.
        length: Lk; None means the length of ``tokens``, or K if ``tokens`` is None.
    """

    allowed: Bool[Tensor, "b #h r k"]
    counts: Bool[Tensor, "b r"]
    position: Int[Tensor, " r"] | None
    first: Int[Tensor, " b"]
    separators: Bool[Tensor, "b lk"] | None = None
    tokens: Int[Tensor, "b lk"] | None = None
    punctuation: Bool[Tensor, "b lk"] | None = None
    origin: int = 0
    length: int | None = None

    @property
    def total(self) -> int:
        """The number of all keys, Lk."""
        if self.length is not None:
            return self.length
        return self.allowed.shape[-1] if self.tokens is None else self.tokens.shape[1]

    @fact
    def choices(self) -> Int[Tensor, "b #h r"]:
        """The number of keys that each query may attend to."""
        return self.allowed.sum(-1)

    @fact
    def queries(self) -> Bool[Tensor, "b #h r"]:
        """True for queries that count and may attend to a key."""
        return self.counts[:, None] & (self.choices > 0)

    @fact
    def chooses(self) -> Bool[Tensor, "b #h r"]:
        """True for queries that count and may attend to at least two keys."""
        return self.queries & (self.choices > 1)

    @property
    def kept(self) -> slice:
        """The range of the numbers of the stored keys."""
        return slice(self.origin, self.origin + self.allowed.shape[-1])

    @property
    def places(self) -> Int[Tensor, " k"]:
        """The numbers of the stored keys."""
        return torch.arange(self.kept.start, self.kept.stop, device=self.allowed.device)

    @property
    def plain(self) -> Bool[Tensor, "b k"]:
        """True for stored keys that are `words`."""
        return self.words(self.places.expand(len(self.first), -1))

    def words(self, key: Int[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
        """Return whether keys are words of the text: neither the first token nor special tokens."""
        other = key != self.first[:, None]
        return other if self.separators is None else other & ~self.separators.gather(1, key)

    @cached_property
    def columns(self) -> dict[str, Bool[Tensor, "b k"]]:
        """True for the stored keys in each named set."""
        columns = {"plain": self.plain}
        if self.separators is not None:
            after_first = self.places != self.first[:, None]
            columns["separators"] = self.separators[:, self.kept] & after_first
        if self.punctuation is not None:
            columns["punctuation"] = self.punctuation[:, self.kept]
        return columns

    @fact
    def sets(self) -> dict[str, Int[Tensor, "b #h r"]]:
        """The number of keys of each set that a query may attend to."""
        columns = torch.stack(list(self.columns.values()), 1).float()  # counts stay below 2 ** 24
        counts = onto(self.allowed.float(), columns).int().unbind(-1)
        return dict(zip(self.columns, counts, strict=True))

    @property
    def beside(self) -> Int[Tensor, "r n"]:
        """The numbers of the keys at distances -NEAR to NEAR; empty without positions."""
        if self.position is None:
            return torch.zeros_like(self.counts[0], dtype=torch.long)[:, None][:, :0]
        return self.position[:, None] + torch.arange(-NEAR, NEAR + 1, device=self.position.device)

    @cached_property
    def singles(self) -> tuple[Int[Tensor, "b one r n"], Bool[Tensor, "b one r n"]]:
        """The keys `beside` a query, the first non-padding key and the key of its `stripe`.

        The pair is the index of each key among the stored keys, and whether the key is stored.
        """
        first = self.first[:, None].expand_as(self.counts)
        stripe, repeated = self.stripe
        beside = self.beside.expand(*self.counts.shape, -1)
        key = torch.cat((beside, first[..., None], stripe[..., None]), -1)  # (B, R, n)
        inside = self.is_kept(key)
        inside[..., STRIPE_KEY] &= repeated
        return (key - self.origin).where(inside, 0)[:, None], inside[:, None]

    @fact
    def single(self) -> Bool[Tensor, "b #h r n"]:
        """Whether a query may attend to each of its `singles`."""
        index, inside = self.singles
        return self.allowed.gather(-1, index.expand(-1, self.allowed.shape[1], -1, -1)) & inside

    @property
    def near(self) -> Bool[Tensor, "b #h r n"]:
        """Whether a query may attend to each of the keys `beside` it."""
        return self.single[..., :-2]

    @fact
    def near_words(self) -> Bool[Tensor, "b one r n"]:
        """True for the keys `beside` a query that are stored and words of the text."""
        key = self.beside
        inside = self.is_kept(key)
        words = self.words(key.where(inside, 0).flatten().expand(len(self.first), -1))
        return (words.view(len(self.first), *key.shape) & inside)[:, None]

    def is_kept(self, key: Tensor) -> Tensor:
        """Return whether keys, given by number, are stored."""
        return (key >= self.origin) & (key < self.origin + self.allowed.shape[-1])

    @cached_property
    def span(self) -> tuple[int, int]:
        """The range of stored keys at the positions of the queries; all keys if it has gaps."""
        place, length = self.position, self.allowed.shape[-1]
        if place is None or not len(place) or not bool((place.diff() == 1).all()):
            return 0, length
        start, stop = (int(position) - self.origin for position in (place[0], place[-1] + 1))
        return (start, stop) if start >= 0 and stop <= length else (0, length)

    @fact
    def beyond(self) -> tuple[bool, bool]:
        """Whether any query may attend to keys before the `span`, and to keys after it."""
        start, stop = self.span
        return bool(self.allowed[..., :start].any()), bool(self.allowed[..., stop:].any())

    @fact
    def furthest(self) -> Int[Tensor, "b #h r"]:
        """The distance of the furthest key that a query may attend to; 0 without positions."""
        if self.position is None:
            return torch.zeros_like(self.choices)
        key = self.places.int()
        ahead = torch.where(self.allowed, key, -1).amax(-1) - self.position
        behind = self.position - torch.where(self.allowed, key, self.kept.stop).amin(-1)
        return ahead.maximum(behind)

    @fact
    def rarest(self) -> Int[Tensor, "b #h r"]:
        """The largest id of the `words` that a query may attend to; -1 without a word."""
        if self.tokens is None:
            return torch.full_like(self.choices, -1)
        words = torch.where(self.plain, self.tokens[:, self.kept], -1).int()
        words = words[:, None, None]  # (B, 1, 1, K)
        return torch.where(self.allowed, words, -1).amax(-1)

    @fact
    def blocks(self) -> Int[Tensor, "b #h r"]:
        """The number of blocks of `SIZE` keys with a key that a query may attend to."""
        return by_block(self.allowed, self.origin).any(-1).sum(-1)

    @cached_property
    def stripe(self) -> tuple[Int[Tensor, "b r"], Bool[Tensor, "b r"]]:
        """The key after the query's token one period earlier, and whether there is such a key."""
        if self.tokens is None or self.position is None:
            return torch.zeros_like(self.counts, dtype=torch.long), torch.zeros_like(self.counts)
        pairs = zip(self.tokens, self.first.tolist(), strict=True)
        periods = [period(tokens[start:]) for tokens, start in pairs]
        after = torch.tensor(periods, device=self.first.device)[:, None]  # (B, 1)
        repeated = (after > 0) & (self.position - self.first[:, None] >= after)  # (B, R)
        return self.position - after + 1, repeated

    @cached_property
    def early(self) -> tuple[Bool[Tensor, "b r"], Int[Tensor, "b t"]]:
        """True for the first `EARLY` queries, and the numbers of the first `EARLY` keys."""
        key = self.first[:, None] + torch.arange(EARLY, device=self.first.device)
        if self.position is None:
            return torch.zeros_like(self.counts), key
        after = self.position - self.first[:, None]  # (B, R)
        return (after >= 0) & (after < EARLY), key

    @fact
    def received(self) -> Bool[Tensor, "b #h r t"]:
        """Whether an early query counts and may attend to each of the first `EARLY` keys."""
        early, _ = self.early
        return self.first_keys(self.allowed) & (self.queries & early[:, None])[..., None]

    def first_keys(self, table: Tensor) -> Tensor:
        """Return the first `EARLY` keys (B, H, R, T) of a table; 0 without early queries."""
        early, key = self.early
        if not bool(early.any()):
            return table.new_zeros(*table.shape[:3], EARLY)
        inside = self.is_kept(key)[:, None, None]  # (B, 1, 1, T)
        index = (key - self.origin)[:, None, None].where(inside, 0)
        return table.gather(-1, index.expand(*table.shape[:3], -1)) * inside

    @fact
    def segment(self) -> Bool[Tensor, "b #h r"]:
        """True for queries that count and may attend inside and outside their own segment."""
        own = self.own_part
        inside, outside = (self.allowed & own).any(-1), (self.allowed & ~own).any(-1)
        return inside & outside & self.queries

    @property
    def own_part(self) -> Bool[Tensor, "b one r k"]:
        """Whether a key is in the segment of the query; separators end segments."""
        if self.separators is None or self.position is None:
            return torch.zeros_like(self.allowed[:, :1])
        part = self.separators.cumsum(-1) - self.separators.long()  # a separator ends its segment
        return (part[:, self.position][..., None] == part[:, None, self.kept])[:, None]

    @fact
    def pairs(self) -> tuple[Pairs, ...]:
        """The pairs of a query and an allowed key for the kinds "same" and "after" of `NAMES`."""
        if self.tokens is None or self.position is None:
            return (Pairs.none(self.first.device, self.allowed.shape[1]),) * 2
        return Pairs.of(self.allowed, self.origin, self.tokens, self.position)

    @fact
    def repeats(self) -> dict[str, Int[Tensor, "b #h r"]]:
        """The number of keys of each kind in `query_facts.NAMES` that a query may attend to."""
        ones = torch.ones((1, self.allowed.shape[1]), dtype=torch.int, device=self.first.device)
        return self.by_pair(lambda query, _: ones.expand(len(query), -1))

    def by_pair(self, on: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
        """Return sums (B, H, R) of values (pairs, H) over allowed pairs, for each of `NAMES`.

        ``on`` returns the values of pairs, given their query indices in B·R and their key indices.
        """
        batch, length = self.counts.shape

        def summed(query: Tensor, values: Tensor) -> Tensor:
            sums = values.new_zeros(batch * length, values.shape[1]).index_add_(0, query, values)
            return sums.view(batch, length, -1).transpose(1, 2)

        by_name: dict[str, Tensor] = {}
        for pairs, (every, earlier) in zip(self.pairs, (NAMES[:2], NAMES[2:]), strict=True):
            query, before = pairs.query.long(), pairs.before
            values = on(query, pairs.place.long()) * pairs.allowed
            by_name[every] = by_name[earlier] = summed(query, values)
            if before is not None:
                by_name[earlier] = summed(query[before], values[before])
        return by_name

    def without_inputs(self, names: Collection[str]) -> "KeyContext":
        """Return this context without ``allowed``, but with these facts and those `Rows` reads."""
        if self.facts_only:
            return self
        parts = ["single", "beyond"] + ["pairs"] * ("repeats" in names)
        none = self.allowed.new_zeros(1).expand(self.allowed.shape)
        return replace(self, allowed=none, facts_only=True).with_facts(self.facts((*names, *parts)))

    @classmethod
    def concatenated(cls, parts: Sequence["KeyContext"], names: Collection[str]) -> "KeyContext":
        """Return the context of consecutive blocks of one text, with the facts of these names."""
        first, facts = parts[0], concatenated([part.facts(names) for part in parts])
        places = [part.position for part in parts if part.position is not None]
        shape = (*first.allowed.shape[:2], sum(part.counts.shape[1] for part in parts), 0)
        whole = replace(
            first,
            allowed=first.allowed.new_zeros(shape),
            counts=torch.cat([part.counts for part in parts], 1),
            position=torch.cat(places) if places else None,
            origin=0,
            facts_only=True,
        )
        return whole.with_facts(facts)


def onto(table: Tensor, columns: Tensor) -> Tensor:
    """Multiply a table (B, H, R, K) by columns (B, m, K) to (B, H, R, m)."""
    return torch.bmm(table.flatten(1, 2), columns.mT).view(*table.shape[:3], -1)


def by_block(table: Tensor, origin: int) -> Tensor:
    """Reshape (B, H, R, K) to (B, H, R, blocks, SIZE); the first block starts at key 0."""
    before = origin % SIZE
    around = (before, -(before + table.shape[-1]) % SIZE)
    whole = torch.nn.functional.pad(table, around) if any(around) else table
    return whole.view(*whole.shape[:-1], -1, SIZE)
