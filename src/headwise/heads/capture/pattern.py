"""The allowed pairs of an attention, and the terms added to their scores."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from headwise.call import Call
from headwise.masks.mask import Tile
from headwise.positions import Stage


class Pattern(ABC):
    """The allowed pairs of queries and keys, evaluated block by block."""

    @abstractmethod
    def allowed(self, rows: slice, keys: slice) -> Bool[Tensor, "#b #h r k"]:
        """Return True where a query in ``rows`` may attend to a key in ``keys``."""

    @abstractmethod
    def added(self, rows: slice, keys: slice) -> Tensor | None:
        """Return the term added to the scaled scores, broadcastable to (B, H, R, K), or None."""

    @abstractmethod
    def reach(self, rows: slice) -> slice:
        """Return a range of keys that contains all keys that ``rows`` may attend to."""

    @abstractmethod
    def same_as(self, other: "Pattern") -> bool:
        """Return whether ``other`` certainly allows the same pairs."""


@dataclass(frozen=True, eq=False)
class TensorPattern(Pattern):
    """A pattern from the mask and bias tensors of a model.

    Attributes:
        keys: the number of keys, Lk.
        device: the device of the results.
        mask: (B or 1, H or 1, Lq, Lk or more): boolean with True = may attend, or additive, where
            the lowest number of the dtype means "not allowed".
        causal: whether query i may attend to keys 0 to i only.
        bias: a tensor with the shape of the mask that is added to the scaled scores.
        written: PyTorch's version counter of the mask, which counts in-place changes.
    """

    keys: int
    device: torch.device
    mask: Tensor | None = None
    causal: bool = False
    bias: Tensor | None = None
    written: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.mask is not None and not self.mask.is_inference():
            object.__setattr__(self, "written", self.mask._version)

    def allowed(self, rows: slice, keys: slice) -> Bool[Tensor, "#b #h r k"]:
        key = torch.arange(keys.start, keys.stop, device=self.device)
        if self.causal:
            seen = key <= torch.arange(rows.start, rows.stop, device=self.device)[:, None]
        else:
            seen = torch.ones_like(key, dtype=torch.bool).expand(rows.stop - rows.start, -1)
        seen = seen[None, None]
        return seen if self.mask is None else seen & _open(self.mask[:, :, rows, keys])

    def added(self, rows: slice, keys: slice) -> Tensor | None:
        mask = None if self.mask is None or self.mask.dtype == torch.bool else self.mask
        parts = (t if t is None else t[:, :, rows, keys] for t in (self.bias, mask))
        return _sum(*parts)

    def reach(self, rows: slice) -> slice:
        stop = min(rows.stop, self.keys) if self.causal else self.keys
        if self.mask is None:
            return slice(0, stop)
        seen = _open(self.mask[:, :, rows, :stop]).any(2).flatten(0, 1).any(0).nonzero()
        return slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 0)

    def same_as(self, other: Pattern) -> bool:
        """Return whether both use the same mask tensor without an in-place change in between."""
        if not isinstance(other, TensorPattern) or self.mask is not other.mask:
            return False
        if (self.keys, self.causal, self.device) != (other.keys, other.causal, other.device):
            return False
        unchanged = self.written == other.written
        return self.mask is None or (unchanged and not self.mask.is_inference())  # has no counter


@dataclass(frozen=True, eq=False)
class CallPattern(Pattern):
    """The pattern of a headwise attention call: its mask and its position encoding."""

    call: Call

    def allowed(self, rows: slice, keys: slice) -> Bool[Tensor, "#b #h r k"]:
        allowed = self.call.mask.rule(*self._indices(rows, keys))
        return allowed.expand(*allowed.shape[:2], rows.stop - rows.start, keys.stop - keys.start)

    def added(self, rows: slice, keys: slice) -> Tensor | None:
        call, (b, h, query, key) = self.call, self._indices(rows, keys)
        relative = None
        if Stage.SCORES in call.position.stages:
            q = call.q[:, :, rows]
            relative = call.position.bias(q, query.flatten(), key.flatten(), call.scale)
        return _sum(call.mask.bias(b, h, query, key), relative)

    def reach(self, rows: slice) -> slice:
        """Find the range by bisection over empty mask tiles."""
        shape = self.call.shape
        queries = range(rows.start + shape.offset, rows.stop + shape.offset)
        if not queries or not shape.keys:
            return slice(0, 0)

        def empty(start: int, stop: int) -> bool:
            return start >= stop or self.call.mask.tile(queries, range(start, stop)) is Tile.EMPTY

        keys = range(shape.keys)
        first = bisect_left(keys, True, key=lambda key: not empty(0, key + 1))
        return slice(first, bisect_left(keys, True, first, key=lambda key: empty(key, shape.keys)))

    def same_as(self, other: Pattern) -> bool:
        if not isinstance(other, CallPattern):
            return False
        return self.call.shape == other.call.shape and self.call.mask == other.call.mask

    def _indices(self, rows: slice, keys: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        shape = self.call.shape
        count, number = rows.stop - rows.start, keys.stop - keys.start
        part = replace(shape, queries=count, keys=number, offset=shape.offset + rows.start)
        b, h, query, key = part.indices()
        return b, h, query, key + keys.start


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _open(mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return mask
    return mask > torch.finfo(mask.dtype).min / 2
