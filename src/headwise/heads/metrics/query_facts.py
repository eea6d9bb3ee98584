"""Facts about queries: statistics kept after the weights are freed, and repeated tokens."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Fact = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""A per-query statistic: tensors whose axis 2 is R, the queries of the block."""

T = TypeVar("T")


class fact(cached_property[T]):  # noqa: N801 - it stands where `property` does
    """A cached property of `Queries` that can be kept after its inputs are freed.

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
    """A block of queries and the facts about them.

    Attributes:
        facts_only: whether the inputs of the facts were freed.
    """

    facts_only: bool = False

    def facts(self, names: Collection[str]) -> dict[str, Fact]:
        """The facts with these names; names that are not facts of this class are ignored."""
        mine = [name for name in names if isinstance(getattr(type(self), name, None), fact)]
        return {name: getattr(self, name) for name in mine}

    def with_facts(self, facts: Mapping[str, Fact]) -> Self:
        """This block with these facts stored."""
        vars(self).update(facts)
        return self


def concatenated(facts: Sequence[Mapping[str, Fact]]) -> dict[str, Fact]:
    """The facts of several blocks, concatenated along R."""
    return {name: _concatenate([block[name] for block in facts]) for name in facts[0]}


def _concatenate(parts: Sequence[Any]) -> Fact:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts), 2) if len(parts) > 1 else first
    if isinstance(first, dict):
        return {key: torch.cat([part[key] for part in parts], 2) for key in first}
    return tuple(torch.cat(tensors, 2) for tensors in zip(*parts, strict=True))


NAMES = ("same", "earlier_same", "after", "earlier_after")
"""Keys by their pairs: other places of the query's token, those of them before the query, what
follows another place, and what follows one that stands before the query."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a query of a block and a kept key that it may attend to.

    Attributes:
        query: the query's number in B·R.
        place: the key's number among those kept.
        allowed: whether the query of each head may attend to it: (p, H or 1).
        before: whether the other place of the token stands before the query; None where all do.
    """

    query: Int[Tensor, " p"]
    place: Int[Tensor, " p"]
    allowed: Bool[Tensor, "p #h"]
    before: Bool[Tensor, " p"] | None

    @classmethod
    def none(cls, device: torch.device, heads: int) -> "Pairs":
        """No pair at all."""
        empty = torch.zeros(0, dtype=torch.int, device=device)
        return cls(empty, empty, empty.bool()[:, None].expand(0, heads), None)

    @classmethod
    def of(
        cls, allowed: Tensor, origin: int, tokens: Tensor, position: Tensor
    ) -> tuple["Pairs", "Pairs"]:
        """A query with other places of its token, and with what follows those.

        `headwise.heads.metrics.key_context.KeyContext` says what the arguments are.
        """
        length, kept = allowed.shape[2:]
        start = max(origin - 1, 0)  # what follows the key before the first one kept is kept
        known = tokens[:, start : origin + kept].long()
        text = torch.arange(len(known), device=known.device)[:, None] * (tokens.max().long() + 2)
        ordered, order = (known + text).flatten().sort(stable=True)  # apart by text
        own = tokens[:, position].long()
        wanted = (own + text).flatten()
        begin = torch.searchsorted(ordered, wanted)
        many = torch.searchsorted(ordered, wanted, right=True) - begin
        many = many.where(own.flatten() >= 0, 0)  # padding is no token
        query = torch.arange(len(wanted), device=known.device).repeat_interleave(many)
        within = torch.arange(len(query), device=known.device)
        within -= (many.cumsum(0) - many).repeat_interleave(many)
        key = order[begin[query] + within] % known.shape[1] + start
        other = key != position[query % length]
        query, key = query[other], key[other]
        before = key < position[query % length]
        same, after = (cls._allowed(allowed, query, key + by - origin, before) for by in (0, 1))
        return same, after

    @classmethod
    def _allowed(cls, allowed: Tensor, query: Tensor, place: Tensor, before: Tensor) -> "Pairs":
        """Of these pairs those that some head may attend to."""
        length, kept = allowed.shape[2:]
        inside = (place >= 0) & (place < kept)
        query, place, before = query[inside], place[inside], before[inside]
        seen = allowed[query // length, :, query % length, place]
        some = seen.any(-1)
        query, place, before, seen = query[some], place[some], before[some], seen[some]
        return cls(query.int(), place.int(), seen, None if bool(before.all()) else before)


def period(tokens: Int[Tensor, " n"]) -> int:
    """After how many tokens a text repeats itself, at least once in full; 0 if it does not.

    Example:
        >>> period(torch.tensor([7, 8, 9, 7, 8, 9, 7, -1]))
        3
    """
    tokens = tokens[: int((tokens >= 0).sum())]  # padding stands behind, as -1
    same = (tokens == tokens[:1]).nonzero().flatten().tolist()
    for by in same[1:]:
        if 2 * by > len(tokens):
            break
        if torch.equal(tokens[by:], tokens[:-by]):
            return int(by)
    return 0
