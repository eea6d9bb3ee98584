"""How much memory a mask takes while it is written out."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headwise.shapes import AttentionShape, Index

PIECE = 64
"""Queries and keys of the piece that is looked at."""


def bytes_per_pair(
    rule: Callable[[Index, Index, Index, Index], Tensor | None], shape: AttentionShape
) -> float:
    """The most bytes that a rule or a bias holds at once, for each pair of a query and a key.

    It is found by running it on a small piece for all samples and heads, and counts what every step
    makes and lets go, such as distances as integers of 8 bytes.

    Args:
        rule: of a mask that is resolved for the shape.
        shape: the call's shape, with a query and a key at least.
    """
    queries, keys = min(shape.queries, PIECE), min(shape.keys, PIECE)
    indices = replace(shape, queries=queries, keys=keys).indices()
    with _Working(queries * keys) as working:
        rule(*indices)
    return float(working.most / (queries * keys))


class _Working(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors of some size that are made inside and not yet let go."""

    def __init__(self, least: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.least, self.now, self.most = least, 0, 0
        self.users: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        given = {_place(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._made(leaf, given)
        return result

    def _made(self, tensor: Tensor, given: set[int]) -> None:
        """Count a tensor, unless it is small or a view of what was there before."""
        place, size = _place(tensor), tensor.untyped_storage().nbytes()
        if not place or size < self.least * tensor.element_size():
            return
        if place not in self.users:
            if place in given:
                return
            self.now += size
            self.most = max(self.most, self.now)
        self.users[place] = self.users.get(place, 0) + 1
        weakref.finalize(tensor, self._gone, place, size)

    def _gone(self, place: int, size: int) -> None:
        self.users[place] -= 1
        if not self.users[place]:
            del self.users[place]
            self.now -= size


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
