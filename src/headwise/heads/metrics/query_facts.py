"""Facts: cached properties of queries that outlive their inputs; pairs of repeated tokens."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Fact = Tensor | tuple[Tensor, ...] | dict[str, Tensor]  # axis 2 is R, the queries of a block
T = TypeVar("T")


class fact(cached_property[T]):  # noqa: N801 - used like `property`
    """A cached property of `Queries` that stays available after its inputs are freed.

    Example:
        >>> class Some(Queries):
        ...     @fact
        ...     def many(self) -> Tensor:
        ...         return torch.zeros(1, 1, 3)
        >>> Some(facts_only=True).many
        Traceback (most recent call last):
        LookupError: many was not kept; name it in what the metric `reads`
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        def computed(queries: "Queries") -> T:
            if queries.facts_only:
                name = function.__name__
                raise LookupError(f"{name} was not kept; name it in what the metric `reads`")
            return function(queries)

        super().__init__(computed)
        self.__doc__ = function.__doc__


@dataclass(frozen=True, eq=False, kw_only=True)
class Queries:
    """A block of queries with its facts; ``facts_only`` is true after its inputs are freed."""

    facts_only: bool = False

    def facts(self, names: Collection[str]) -> dict[str, Fact]:
        """Return the facts with these names; ignore names that are not facts of this class."""
        mine = [name for name in names if isinstance(getattr(type(self), name, None), fact)]
        return {name: getattr(self, name) for name in mine}

    def with_facts(self, facts: Mapping[str, Fact]) -> Self:
        """Store these facts and return this block."""
        vars(self).update(facts)
        return self


def concatenated(facts: Sequence[Mapping[str, Fact]]) -> dict[str, Fact]:
    """Concatenate the facts of several blocks along R."""
    return {name: _concatenate([block[name] for block in facts]) for name in facts[0]}


def _concatenate(parts: list[Any]) -> Fact:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts, 2) if len(parts) > 1 else first
    if isinstance(first, dict):
        return {key: torch.cat([part[key] for part in parts], 2) for key in first}
    return tuple(torch.cat(tensors, 2) for tensors in zip(*parts, strict=True))


NAMES = ("same", "earlier_same", "after", "earlier_after")
"""The kinds of keys: other occurrences of the query's token; occurrences before the query; keys
after another occurrence; keys after an occurrence before the query."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a query, by its index in B·R, and a stored key that it may attend to.

    ``before`` is True if the other occurrence is before the query; None if always True.
    """

    query: Int[Tensor, " p"]
    place: Int[Tensor, " p"]
    allowed: Bool[Tensor, "p #h"]
    before: Bool[Tensor, " p"] | None

    @classmethod
    def none(cls, device: torch.device, heads: int) -> "Pairs":
        """Return an empty set of pairs."""
        empty = torch.zeros(0, dtype=torch.int, device=device)
        return cls(empty, empty, empty.bool()[:, None].expand(0, heads), None)

    @classmethod
    def of(
        cls, allowed: Tensor, origin: int, tokens: Tensor, position: Tensor
    ) -> tuple["Pairs", "Pairs"]:
        """Return pairs of queries with other occurrences of their token and with the keys after."""
        length, kept = allowed.shape[2:]
        start = max(origin - 1, 0)  # the next key of the last key left out is stored
        ids = tokens[:, start : origin + kept].long()
        text = torch.arange(len(ids), device=ids.device)[:, None] * (tokens.max().long() + 2)
        ordered, order = (ids + text).flatten().sort(stable=True)  # ids differ between texts
        own = tokens[:, position].long()
        wanted = (own + text).flatten()
        begin = torch.searchsorted(ordered, wanted)
        count = torch.searchsorted(ordered, wanted, right=True) - begin
        count = count.where(own.flatten() >= 0, 0)  # padding is not a token
        query = torch.arange(len(wanted), device=ids.device).repeat_interleave(count)
        within = torch.arange(len(query), device=ids.device)
        within -= (count.cumsum(0) - count).repeat_interleave(count)
        key = order[begin[query] + within] % ids.shape[1] + start
        other = key != position[query % length]
        query, key = query[other], key[other]
        before = key < position[query % length]
        same, after = (cls._allowed(allowed, query, key + by - origin, before) for by in (0, 1))
        return same, after

    @classmethod
    def _allowed(cls, allowed: Tensor, query: Tensor, place: Tensor, before: Tensor) -> "Pairs":
        """Return the pairs that at least one head may attend to."""
        length, kept = allowed.shape[2:]
        inside = (place >= 0) & (place < kept)
        query, place, before = query[inside], place[inside], before[inside]
        seen = allowed[query // length, :, query % length, place]
        some = seen.any(-1)
        query, place, before, seen = query[some], place[some], before[some], seen[some]
        return cls(query.int(), place.int(), seen, None if bool(before.all()) else before)


def period(tokens: Int[Tensor, " n"]) -> int:
    """Return the period of a text that repeats itself completely at least once; otherwise 0.

    Example:
        >>> period(torch.tensor([7, 8, 9, 7, 8, 9, 7, -1]))
        3
    """
    tokens = tokens[: int((tokens >= 0).sum())]  # padding is -1, at the end
    same = (tokens == tokens[:1]).nonzero().flatten().tolist()
    for by in same[1:]:
        if 2 * by > len(tokens):
            break
        if torch.equal(tokens[by:], tokens[:-by]):
            return int(by)
    return 0
