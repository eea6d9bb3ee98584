"""Per-query statistics of a block, computed once and kept after the weights are freed.

The cost of a metric is one pass over the weights, so blocks of queries are small enough for the
processor's cache. The few numbers kept for each query are concatenated over the blocks, and every
metric is computed from them at once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
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
