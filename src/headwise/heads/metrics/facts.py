"""What is known of each query of a block, computed once and kept when the weights are let go.

A pass over the weights of a long text is what a metric costs, so a block of queries is as small as
the processor's memory likes. What is left of each query is a few numbers: those of many blocks are
put one behind the other, and every metric is computed from them at once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

Known = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""A fact: tensors whose axis 2 is R, the queries of the block."""

T = TypeVar("T")


class fact(cached_property[T]):  # noqa: N801 - it stands where `property` does
    """A property of `Queries` that is computed when somebody first asks for it.

    Example:
        >>> class Some(Queries):
        ...     @fact
        ...     def many(self) -> Tensor:
        ...         return torch.zeros(1, 1, 3)
        >>> Some(only_kept=True).many
        Traceback (most recent call last):
        LookupError: many was not kept; name it in what the metric `reads`
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        def computed(queries: "Queries") -> T:
            if queries.only_kept:
                name = function.__name__
                raise LookupError(f"{name} was not kept; name it in what the metric `reads`")
            return function(queries)

        super().__init__(computed)
        self.__doc__ = function.__doc__


@dataclass(frozen=True, eq=False, kw_only=True)
class Queries:
    """Some queries, and facts about them.

    Attributes:
        only_kept: whether what facts are computed from is gone.
    """

    only_kept: bool = False

    def known(self, names: Collection[str]) -> dict[str, Known]:
        """The facts of those names; a name that is no fact of this kind of block is passed over."""
        mine = [name for name in names if isinstance(getattr(type(self), name, None), fact)]
        return {name: getattr(self, name) for name in mine}

    def told(self, facts: Mapping[str, Known]) -> Self:
        """This block, which now knows these facts."""
        vars(self).update(facts)
        return self


def joined(facts: Sequence[Mapping[str, Known]]) -> dict[str, Known]:
    """The facts of several blocks, one behind the other along R."""
    return {name: _behind([each[name] for each in facts]) for name in facts[0]}


def _behind(parts: Sequence[Any]) -> Known:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts), 2) if len(parts) > 1 else first
    if isinstance(first, dict):
        return {key: torch.cat([part[key] for part in parts], 2) for key in first}
    return tuple(torch.cat(each, 2) for each in zip(*parts, strict=True))
