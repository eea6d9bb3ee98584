"""Attention weights of a block of queries, with what several metrics need of them computed once.

At thousands of keys a pass over all weights is what a metric costs, so they share their passes: one
product with a few columns gives every sum over a set of keys and every moment of distance, one
maximum the confidence and where it lies, one logarithm every entropy.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NEAR = 16
"""How many tokens to each side of a query are looked up one by one."""

AT_ONCE = 1 << 17
"""How many numbers are held beside the weights: so few stay near the processor."""

SETS = ("plain", "separators", "punctuation")
"""The sets of keys that have a name."""

Sums = tuple[Tensor, Tensor]
"""What is summed over queries, and what it is divided by: each broadcasts to (B, H, R)."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Attention weights of a block of queries: what a metric is given. R is the block's length.

    Attributes:
        weights: (B, H, R, Lk), 0 where not allowed; rows sum to 1, or less beside a learned sink.
        allowed: (B, H or 1, R, Lk), True where a query may attend.
        counts: (B, R), True for the queries that count: real ones, no padding.
        position: (R,), where each query stands among the keys; None where queries and keys are
            different texts (cross-attention) and distance has no meaning.
        first: (B,), the first real key.
        separators: (B, Lk), True on special tokens such as [SEP]; None where unknown.
        tokens: (B, Lk), the numbers of the keys' tokens; None where unknown.
        punctuation: (B, Lk), True on punctuation; None where unknown.
        origin: the number in its text of the first key here: keys that no query of the block may
            attend to may be left away before and after, and ``position`` and ``first`` are counted
            from the first that is kept.
        text: (B, N), the tokens of the whole text and -1 on padding; None where ``tokens`` are.
    """

    weights: Float[Tensor, "b h r lk"]
    allowed: Bool[Tensor, "b #h r lk"]
    counts: Bool[Tensor, "b r"]
    position: Int[Tensor, " r"] | None
    first: Int[Tensor, " b"]
    separators: Bool[Tensor, "b lk"] | None = None
    tokens: Int[Tensor, "b lk"] | None = None
    punctuation: Bool[Tensor, "b lk"] | None = None
    origin: int = 0
    text: Int[Tensor, "b n"] | None = None

    @property
    def uniform(self) -> "Rows":
        """The same rows of a head that attends to every allowed key alike: the baseline, H = 1."""
        allowed = self.allowed
        if allowed.shape[1] > 1:
            allowed = allowed.any(1, keepdim=True)  # (B, 1, R, Lk)
        share = allowed.to(self.weights.dtype)
        share /= share.sum(-1, keepdim=True).clamp(min=1)
        return replace(self, weights=share, allowed=allowed)

    @cached_property
    def shape(self) -> tuple[Tensor, ...]:
        """What is the same in two blocks if a head that attends to all alike is.

        Which keys are allowed is told by a sum of numbers of the keys, one for each query.
        """
        numbers = torch.sin(torch.arange(1, self.allowed.shape[-1] + 1, dtype=torch.float64))
        seen = self.allowed.any(1, keepdim=True).to(torch.float64) @ numbers.to(self.counts.device)
        parts = (self.position, self.separators, self.tokens, self.punctuation, self.text)
        kept = tuple(self.places[:0] if part is None else part for part in parts)
        return seen, self.counts, self.first, *kept

    @cached_property
    def choices(self) -> Int[Tensor, "b #h r"]:
        """How many keys each query may attend to."""
        return self.allowed.sum(-1)

    def queries(self) -> Bool[Tensor, "b #h r"]:
        """The queries that count and see a key: (B, H or 1, R)."""
        return self._queries

    @cached_property
    def _queries(self) -> Bool[Tensor, "b #h r"]:
        return self.counts[:, None] & (self.choices > 0)

    @property
    def nothing(self) -> Sums:
        """What a metric gives that none of these queries can show."""
        return torch.zeros_like(self.weights[..., 0]), torch.zeros_like(self.queries())

    @cached_property
    def places(self) -> Int[Tensor, " lk"]:
        """The keys' numbers."""
        return torch.arange(self.weights.shape[-1], device=self.weights.device)

    @cached_property
    def mass(self) -> Float[Tensor, "b h r"]:
        """What each query gives to all keys: 1, or less beside a learned sink."""
        return self.weights.sum(-1)

    @cached_property
    def entropy(self) -> Float[Tensor, "b h r"]:
        """-Σ_j A log A of each row in nats, where 0 log 0 is 0.

        Example:
            >>> weights = torch.tensor([[[[0.5, 0.5, 0.0]]]])
            >>> here = torch.ones(1, 1, dtype=torch.bool)
            >>> rows = Rows(weights, weights > 0, here, None, torch.tensor([0]))
            >>> rows.entropy.item() == torch.tensor(2.0).log().item()
            True
        """
        least = torch.finfo(self.weights.dtype).tiny  # the logarithm of 0 times 0 is NaN
        batch, heads, length, keys = self.weights.shape
        few = max(1, AT_ONCE // max(1, batch * heads * keys))
        parts = [
            some.clamp(min=least).log_().mul_(some).sum(-1)
            for some in torch.split(self.weights, few, 2)
        ]
        return -torch.cat(parts, -1) if length else self.weights.sum(-1)

    @cached_property
    def most(self) -> tuple[Float[Tensor, "b h r"], Int[Tensor, "b h r"]]:
        """The largest weight of each row, and the key it lies on."""
        values, keys = self.weights.max(-1)
        return values, keys

    @cached_property
    def near(self) -> tuple[Float[Tensor, "b h r n"], Bool[Tensor, "b #h r n"]]:
        """Weights at -NEAR to +NEAR tokens from each query, and whether each is allowed.

        With no positions there are none: the last axis has length 0.
        """
        if self.position is None:
            return self.weights[..., :0], self.allowed[..., :0]
        reach = torch.arange(-NEAR, NEAR + 1, device=self.weights.device)
        key = self.position[:, None] + reach  # (R, 2 NEAR + 1)
        inside = (key >= 0) & (key < self.weights.shape[-1])
        index = key.where(inside, 0)
        found = self.weights.gather(-1, index.expand(*self.weights.shape[:2], -1, -1))
        allowed = self.allowed.gather(-1, index.expand(*self.allowed.shape[:2], -1, -1)) & inside
        return found * allowed, allowed

    @cached_property
    def plain(self) -> Bool[Tensor, "b lk"]:
        """Keys that are words of the text: neither the first token nor special."""
        first = self.places == self.first[:, None]
        return ~first if self.separators is None else ~(first | self.separators)

    @cached_property
    def _columns(self) -> dict[str, Tensor]:
        """What weights are summed by, each (B, Lk): sets of keys, and keys' distances."""
        batch = self.weights.shape[0]
        found = {"plain": self.plain}
        if self.separators is not None:
            found["separators"] = self.separators & (self.places != self.first[:, None])
        if self.punctuation is not None:
            found["punctuation"] = self.punctuation
        if self.position is not None:
            start, stop = self._span
            behind, ahead = start - self.places, self.places - (stop - 1)
            for name, apart in (("behind", behind), ("ahead", ahead)):
                away = apart.clamp(min=0)
                found[name] = (away > 0).expand(batch, -1)
                found[f"{name} distance"] = away.expand(batch, -1)
                found[f"{name} square"] = away.square().expand(batch, -1)
        return {name: column.to(self.weights.dtype) for name, column in found.items()}

    @cached_property
    def _sums(self) -> dict[str, Tensor]:
        """The sum of each row by each column, (B, H, R), in one pass over the weights."""
        columns = torch.stack(list(self._columns.values()), -1)  # (B, Lk, m)
        found = _onto(self.weights, columns).unbind(-1)
        return dict(zip(self._columns, found, strict=True))

    @cached_property
    def _span(self) -> tuple[int, int]:
        """The keys from the first query's own to after the last's; all where they do not follow."""
        place, length = self.position, self.weights.shape[-1]
        if place is None or not len(place) or not bool((place.diff() == 1).all()):
            return 0, length
        start, stop = int(place[0]), int(place[-1]) + 1
        return (start, stop) if start >= 0 and stop <= length else (0, length)

    @cached_property
    def distances(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Σ_j A |i - j|, Σ_j A (j - i), Σ_j A (i - j)² and Σ_{j<i} A of each row, (B, H, R) each.

        Keys before the block lie (i - start) + (start - j) away, so that sums over them need no
        distance of their own for each pair; keys beside its queries are measured one by one.
        """
        if self.position is None:
            return (torch.zeros_like(self.weights[..., 0]),) * 4
        (start, stop), dtype = self._span, self.weights.dtype
        beside = self.weights[..., start:stop]
        apart = (self.places[start:stop] - self.position[:, None]).to(dtype)  # (R, n)
        away, signed, square, before = (
            torch.einsum("bhrk,rk->bhr", beside, each)
            for each in (apart.abs(), apart, apart.square(), (apart < 0).to(dtype))
        )
        sides = (("behind", self.position - start, -1), ("ahead", stop - 1 - self.position, 1))
        for name, extra, sign in sides:
            mass, far = self._sums[name], self._sums[f"{name} distance"]
            squares = self._sums[f"{name} square"]
            offset = extra.to(dtype)
            further = far + mass * offset
            away = away + further
            signed = signed + sign * further
            square = square + squares + 2 * offset * far + offset.square() * mass
        return away, signed, square, before + self._sums["behind"]

    def on(self, name: str) -> Sums:
        """For each query the weight on a named set of keys, and whether it may attend to one.

        Args:
            name: "plain", "separators" (after the first token) or "punctuation".
        """
        if name not in self._columns:
            return self.nothing
        offered = (self.offered(name) > 0) & self.queries()
        return self._sums[name] * offered, offered

    def offered(self, name: str) -> Int[Tensor, "b #h r"]:
        """How many keys of a named set each query may attend to."""
        return self._offered[name]

    @cached_property
    def _offered(self) -> dict[str, Tensor]:
        """How many allowed keys of each set there are, (B, H or 1, R), in one pass over them."""
        sets = {name: self._columns[name] for name in SETS if name in self._columns}
        columns = torch.stack(list(sets.values()), -1).float()  # (B, Lk, m), counts below 2 ** 24
        found = _onto(self.allowed.float(), columns).long().unbind(-1)
        return dict(zip(sets, found, strict=True))

    @cached_property
    def _same(self) -> tuple[Tensor, Tensor]:
        """Every pair of a query (its number in B·R) and another place of its token (from -1 on).

        The key before the first one kept is looked at as well: what follows it is kept.
        """
        if self.tokens is None or self.position is None:
            return self.places[:0], self.places[:0]
        known, more = self.tokens, 0
        if self.text is not None and self.origin:
            more = 1
            known = self.text[:, self.origin - 1 : self.origin + self.weights.shape[-1]]
        batch, length = known.shape
        text = torch.arange(batch, device=known.device)[:, None]
        several = known.long() + text * (known.max().long() + 2)  # apart by text
        ordered, order = several.flatten().sort(stable=True)
        wanted = several[:, self.position + more].flatten()  # (B·R,)
        begin = torch.searchsorted(ordered, wanted)
        many = torch.searchsorted(ordered, wanted, right=True) - begin
        query = torch.arange(len(wanted), device=known.device).repeat_interleave(many)
        within = torch.arange(len(query), device=known.device)
        within = within - (many.cumsum(0) - many).repeat_interleave(many)
        key = order[begin[query] + within] % length - more
        other = key != self.position[query % len(self.position)]
        return query[other], key[other]

    def after_same(self, by: int) -> Sums:
        """For each query the weight on the keys ``by`` places after other occurrences of its token.

        The first is (B, H, R), the second whether the query counts and has such a key; nothing
        where tokens are unknown, or queries and keys are different texts.
        """
        weight, seen = self.pattern(by)
        counted = (seen > 0) & self.queries()
        return weight * counted, counted

    def pattern(self, by: int, *, earlier: bool = False) -> tuple[Tensor, Tensor]:
        """The same weights, and how many such allowed keys there are, (B, H or 1, R).

        Args:
            by: 0 for the other occurrences themselves, 1 for what comes after them.
            earlier: whether only occurrences before the query count.
        """
        if (by, earlier) not in self._patterns:
            self._patterns[by, earlier] = self._pattern(by, earlier)
        return self._patterns[by, earlier]

    @cached_property
    def _patterns(self) -> dict[tuple[int, bool], tuple[Tensor, Tensor]]:
        """What `pattern` has found so far: several metrics ask for the same."""
        return {}

    def _pattern(self, by: int, earlier: bool) -> tuple[Tensor, Tensor]:
        query, key = self._same
        batch, heads, length, keys = self.weights.shape
        inside = (key + by >= 0) & (key + by < keys)
        if earlier and self.position is not None:
            inside = inside & (key < self.position[query % length])
        query, place = query[inside], key[inside] + by
        text, row = query // length, query % length
        found = self.weights.new_zeros(batch * length, heads)
        seen = self.weights.new_zeros(batch * length, self.allowed.shape[1])
        allowed = self.allowed[text, :, row, place]  # (pairs, H or 1)
        found.index_add_(0, query, self.weights[text, :, row, place] * allowed)
        seen.index_add_(0, query, allowed.to(seen.dtype))
        back = (batch, length, -1)
        return found.view(back).transpose(1, 2), seen.view(back).transpose(1, 2)

    def at(self, key: Int[Tensor, "b r"]) -> Sums:
        """For each query the weight on one key (B, H, R), and whether it counts and is allowed."""
        inside = (key >= 0) & (key < self.weights.shape[-1])  # (B, R)
        index = key.where(inside, 0)[:, None, :, None]  # (B, 1, R, 1)
        weight = self.weights.gather(-1, index.expand(-1, self.weights.shape[1], -1, -1))[..., 0]
        allowed = self.allowed.gather(-1, index.expand(-1, self.allowed.shape[1], -1, -1))[..., 0]
        counted = allowed & inside[:, None] & self.queries()
        return weight * counted, counted

    def shifted(self, by: int) -> Sums:
        """`at` for the key ``by`` places after each query; nothing counts without positions."""
        if self.position is None:
            return self.nothing
        if abs(by) <= NEAR:
            weight, offered = (each[..., NEAR + by] for each in self.near)
            counted = offered & self.queries()
            return weight * counted, counted
        return self.at((self.position + by).expand(self.weights.shape[0], -1))


def _onto(weights: Tensor, columns: Tensor) -> Tensor:
    """Weights (B, H, R, Lk) times columns (B, Lk, m): (B, H, R, m)."""
    found = torch.bmm(weights.flatten(1, 2), columns)
    return found.view(*weights.shape[:3], -1)
