"""What is offered to the queries of a block: which keys they may attend to, and what those are.

None of it depends on the weights, so the layers of a model that share a mask share it.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headwise.heads.metrics.query_facts import NAMES as REPEATS
from headwise.heads.metrics.query_facts import Pairs, Queries, concatenated, fact, period

NEAR = 16
"""How many tokens to each side of a query are looked up one by one."""

EARLY = 64
"""T: how many of the first keys, and of the first queries, are early."""

SIZE = 16
"""How many keys a block of keys has."""


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyContext(Queries):
    """Who may attend to what in a block of queries. R is how many these are, K how many keys.

    Keys that no query of the block may attend to may be left away before and after: K counts those
    that are kept, Lk all. Keys are told by their number among all.

    Attributes:
        allowed: (B, H or 1, R, K), True where a query may attend.
        counts: (B, R), True for the queries that count: real ones, no padding.
        position: (R,), the key that each query stands at; None where queries and keys are
            different texts (cross-attention) and distance has no meaning.
        first: (B,), the first real key.
        separators: (B, Lk), True on special tokens such as [SEP]; None where unknown.
        tokens: (B, Lk), the numbers of the keys' tokens, -1 on padding; None where unknown.
        punctuation: (B, Lk), True on punctuation; None where unknown.
        origin: the number of the first key that is kept.
        length: Lk; None means that of ``tokens``, or K where these are unknown.
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
        """Lk, how many keys the text has."""
        if self.length is not None:
            return self.length
        return self.allowed.shape[-1] if self.tokens is None else self.tokens.shape[1]

    @fact
    def choices(self) -> Int[Tensor, "b #h r"]:
        """How many keys each query may attend to."""
        return self.allowed.sum(-1)

    @fact
    def queries(self) -> Bool[Tensor, "b #h r"]:
        """The queries that count and see a key."""
        return self.counts[:, None] & (self.choices > 0)

    @fact
    def chooses(self) -> Bool[Tensor, "b #h r"]:
        """The queries with at least two keys: the only ones whose entropy says anything."""
        return self.queries & (self.choices > 1)

    @property
    def places(self) -> Int[Tensor, " k"]:
        """The numbers of the keys that are kept."""
        kept = self.allowed.shape[-1]
        return torch.arange(self.origin, self.origin + kept, device=self.allowed.device)

    @property
    def plain(self) -> Bool[Tensor, "b k"]:
        """The kept keys that are words of the text: neither the first token nor special."""
        return self.words(self.places.expand(len(self.first), -1))

    def words(self, key: Int[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
        """Whether keys are words of the text: neither the first token nor special."""
        other = key != self.first[:, None]
        return other if self.separators is None else other & ~self.separators.gather(1, key)

    @cached_property
    def columns(self) -> dict[str, Bool[Tensor, "b k"]]:
        """The kept keys of each set."""
        found, kept = {"plain": self.plain}, slice(self.origin, self.origin + len(self.places))
        if self.separators is not None:
            found["separators"] = self.separators[:, kept] & (self.places != self.first[:, None])
        if self.punctuation is not None:
            found["punctuation"] = self.punctuation[:, kept]
        return found

    @fact
    def sets(self) -> dict[str, Int[Tensor, "b #h r"]]:
        """How many keys of each set a query may attend to."""
        columns = torch.stack(list(self.columns.values()), 1).float()  # counts stay below 2 ** 24
        found = onto(self.allowed.float(), columns).int().unbind(-1)
        return dict(zip(self.columns, found, strict=True))

    @property
    def beside(self) -> Int[Tensor, "r n"]:
        """The keys -NEAR to +NEAR tokens from each query; with no positions there are none."""
        if self.position is None:
            return torch.zeros_like(self.counts[0], dtype=torch.long)[:, None][:, :0]
        return self.position[:, None] + torch.arange(-NEAR, NEAR + 1, device=self.position.device)

    @cached_property
    def singles(self) -> tuple[Int[Tensor, "b one r n"], Bool[Tensor, "b one r n"]]:
        """Keys that are looked up one by one, by their place among those kept, and which are kept.

        They are those `beside` a query, the first real key, and that of the query's `stripe`.
        """
        first = self.first[:, None].expand_as(self.counts)
        stripe, repeated = self.stripe
        ones = torch.ones_like(repeated)[..., None]
        beside = self.beside.expand(*self.counts.shape, -1)
        key = torch.cat((beside, first[..., None], stripe[..., None]), -1)  # (B, R, n)
        wanted = torch.cat((ones.expand_as(beside), ones, repeated[..., None]), -1)
        inside = wanted & self.kept_among(key)
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

    @property
    def on_first(self) -> Bool[Tensor, "b #h r"]:
        """The queries that count and may attend to the first real key."""
        return self.single[..., -2] & self.queries

    @property
    def on_stripe(self) -> Bool[Tensor, "b #h r"]:
        """The queries that count and may attend to the key of their `stripe`."""
        return self.single[..., -1] & self.queries

    @fact
    def near_words(self) -> Bool[Tensor, "b one r n"]:
        """Which of the keys `beside` a query are kept and words of the text."""
        key = self.beside
        inside = self.kept_among(key)
        words = self.words(key.where(inside, 0).flatten().expand(len(self.first), -1))
        return (words.view(len(self.first), *key.shape) & inside)[:, None]

    def kept_among(self, key: Tensor) -> Tensor:
        """Whether keys are among those kept."""
        return (key >= self.origin) & (key < self.origin + self.allowed.shape[-1])

    @cached_property
    def span(self) -> tuple[int, int]:
        """The kept keys from the first query's own to after the last's; all where they jump."""
        place, length = self.position, self.allowed.shape[-1]
        if place is None or not len(place) or not bool((place.diff() == 1).all()):
            return 0, length
        start, stop = (int(position) - self.origin for position in (place[0], place[-1] + 1))
        return (start, stop) if start >= 0 and stop <= length else (0, length)

    @fact
    def beyond(self) -> tuple[bool, bool]:
        """Whether any query may attend before the `span`, and behind it; not joined."""
        start, stop = self.span
        return bool(self.allowed[..., :start].any()), bool(self.allowed[..., stop:].any())

    @fact
    def furthest(self) -> Int[Tensor, "b #h r"]:
        """How far away the furthest key lies that a query may attend to; 0 without positions."""
        if self.position is None:
            return torch.zeros_like(self.choices)
        key, end = self.places.int(), self.origin + self.allowed.shape[-1]
        ahead = torch.where(self.allowed, key, -1).amax(-1) - self.position
        behind = self.position - torch.where(self.allowed, key, end).amin(-1)
        return ahead.maximum(behind)

    @fact
    def rarest(self) -> Int[Tensor, "b #h r"]:
        """The largest number of a token that is a word and may be attended to; -1 for none."""
        if self.tokens is None:
            return torch.full_like(self.choices, -1)
        tokens = self.tokens[:, self.origin : self.origin + self.allowed.shape[-1]]
        words = torch.where(self.plain, tokens, -1).int()[:, None, None]  # (B, 1, 1, K)
        return torch.where(self.allowed, words, -1).amax(-1)

    @fact
    def blocks(self) -> Int[Tensor, "b #h r"]:
        """How many blocks of `SIZE` keys hold one that a query may attend to."""
        allowed = by_block(self.allowed, self.origin)
        return allowed.any(-1).sum(-1)

    @cached_property
    def stripe(self) -> tuple[Int[Tensor, "b r"], Bool[Tensor, "b r"]]:
        """What followed a query's token one period ago, and whether there is such a key."""
        if self.tokens is None or self.position is None:
            return torch.zeros_like(self.counts, dtype=torch.long), torch.zeros_like(self.counts)
        pairs = zip(self.tokens, self.first.tolist(), strict=True)
        periods = [period(tokens[start:]) for tokens, start in pairs]
        after = torch.tensor(periods, device=self.first.device)[:, None]  # (B, 1)
        repeated = (after > 0) & (self.position - self.first[:, None] >= after)  # (B, R)
        key = self.position - after + 1
        return key, repeated

    @cached_property
    def early(self) -> tuple[Bool[Tensor, "b r"], Int[Tensor, "b t"]]:
        """Which queries are among the first `EARLY`, and the numbers of the first `EARLY` keys."""
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
        """What a table (B, H, R, K) says of the first `EARLY` keys, (B, H, R, T); 0 if none."""
        early, key = self.early
        if not bool(early.any()):
            return table.new_zeros(*table.shape[:3], EARLY)
        inside = self.kept_among(key)[:, None, None]  # (B, 1, 1, T)
        index = (key - self.origin)[:, None, None].where(inside, 0)
        return table.gather(-1, index.expand(*table.shape[:3], -1)) * inside

    @fact
    def segment(self) -> Bool[Tensor, "b #h r"]:
        """The queries that count and may attend inside their own part and outside of it."""
        own = self.own_part
        inside, outside = (self.allowed & own).any(-1), (self.allowed & ~own).any(-1)
        return inside & outside & self.queries

    @property
    def own_part(self) -> Bool[Tensor, "b one r k"]:
        """Whether a key is in the part between separators that the query is in."""
        if self.separators is None or self.position is None:
            return torch.zeros_like(self.allowed[:, :1])
        part = self.separators.cumsum(-1) - self.separators.long()  # a separator ends its part
        keys = part[:, self.origin : self.origin + self.allowed.shape[-1]]
        return (part[:, self.position][..., None] == keys[:, None])[:, None]

    @fact
    def pairs(self) -> tuple[Pairs, ...]:
        """For `same` and `after` the pairs of a query and an allowed key; not joined."""
        if self.tokens is None or self.position is None:
            return (Pairs.none(self.first.device, self.allowed.shape[1]),) * 2
        return Pairs.of(self.allowed, self.origin, self.tokens, self.position)

    @fact
    def repeats(self) -> dict[str, Int[Tensor, "b #h r"]]:
        """How many keys of each of `repeats.NAMES` a query may attend to."""
        ones = torch.ones((1, self.allowed.shape[1]), dtype=torch.int, device=self.first.device)
        return self.by_pair(lambda query, _: ones.expand(len(query), -1))

    def by_pair(self, on: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
        """Something about every allowed pair, summed for each query: for each of `repeats.NAMES`.

        Args:
            on: from the pairs' queries in B·R and their kept keys to (pairs, H).

        Returns:
            (B, H, R) each.
        """
        batch, length = self.counts.shape

        def summed(query: Tensor, on_pairs: Tensor) -> Tensor:
            found = on_pairs.new_zeros(batch * length, on_pairs.shape[1]).index_add_(
                0, query, on_pairs
            )
            return found.view(batch, length, -1).transpose(1, 2)

        found: dict[str, Tensor] = {}
        for pairs, names in zip(self.pairs, (REPEATS[:2], REPEATS[2:]), strict=True):
            query, before = pairs.query.long(), pairs.before
            on_pairs = on(query, pairs.place.long()) * pairs.allowed
            every = summed(query, on_pairs)
            some = every if before is None else summed(query[before], on_pairs[before])
            found |= dict(zip(names, (every, some), strict=True))
        return found

    def without_inputs(self, names: Collection[str]) -> "KeyContext":
        """The same without the table of who may attend to what, which is as large as the weights.

        Args:
            names: the facts that are asked for later; what `Rows` need beside them remains too.
        """
        if self.facts_only:
            return self
        parts = ["single", "beyond"] + ["pairs"] * ("repeats" in names)
        none = self.allowed.new_zeros(1).expand(self.allowed.shape)
        return replace(self, allowed=none, facts_only=True).with_facts(self.facts((*names, *parts)))

    @classmethod
    def concatenated(cls, parts: Sequence["KeyContext"], names: Collection[str]) -> "KeyContext":
        """The queries of blocks of one text, one behind the other, with the facts of those names.

        Keys are those of the whole text.
        """
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
    """A table (B, H, R, K) times columns (B, m, K): (B, H, R, m)."""
    found = torch.bmm(table.flatten(1, 2), columns.mT)
    return found.view(*table.shape[:3], -1)


def by_block(table: Tensor, origin: int) -> Tensor:
    """(B, H, R, K) as (B, H, R, blocks, SIZE); blocks are counted from the start of the text."""
    before = origin % SIZE
    around = (before, -(before + table.shape[-1]) % SIZE)
    whole = torch.nn.functional.pad(table, around) if any(around) else table
    return whole.view(*whole.shape[:-1], -1, SIZE)
