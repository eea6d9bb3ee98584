"""Which query of a running attention may attend to which key, and what is added to its score."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from headwise.call import Call
from headwise.masks.mask import Tile
from headwise.positions import Stage


class Pattern(ABC):
    """Who may attend to whom, asked for a block of queries and of keys at a time."""

    @abstractmethod
    def allowed(self, rows: slice, keys: slice) -> Bool[Tensor, "#b #h r k"]:
        """True where a query of these rows may attend to one of these keys."""

    @abstractmethod
    def added(self, rows: slice, keys: slice) -> Tensor | None:
        """What is added to the scaled scores, broadcasting to (B, H, R, K); None for nothing.

        What it says of pairs that are not allowed does not matter.
        """

    @abstractmethod
    def reach(self, rows: slice) -> slice:
        """Keys outside of which none of these queries may attend; more is never wrong."""

    @abstractmethod
    def same_as(self, other: "Pattern") -> bool:
        """Whether the other certainly allows the same; False is never wrong."""


@dataclass(frozen=True, eq=False)
class TensorPattern(Pattern):
    """A pattern as models of other people give it.

    Attributes:
        keys: Lk.
        device: where it is asked for.
        mask: (B or 1, H or 1, Lq, Lk or more): booleans, True = may attend, or numbers that are
            added, the lowest of their dtype meaning "not allowed"; or None.
        causal: whether query i sees keys 0 to i only.
        bias: (B or 1, H or 1, Lq, Lk or more), added to the scaled scores; or None.
        written: how often the mask had been written to, where PyTorch counts that.
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
        found = seen[None, None]
        return found if self.mask is None else found & _open(self.mask[:, :, rows, keys])

    def added(self, rows: slice, keys: slice) -> Tensor | None:
        numbers = [tensor for tensor in (self.bias, self.mask) if tensor is not None]
        parts = [tensor[:, :, rows, keys] for tensor in numbers if tensor.dtype != torch.bool]
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def reach(self, rows: slice) -> slice:
        stop = min(rows.stop, self.keys) if self.causal else self.keys
        if self.mask is None:
            return slice(0, stop)
        seen = _open(self.mask[:, :, rows, :stop]).any(2).flatten(0, 1).any(0).nonzero()
        return slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 0)

    def same_as(self, other: Pattern) -> bool:
        """Layers are handed one and the same mask; one that was written to since is another."""
        if not isinstance(other, TensorPattern):
            return False
        known = (self.keys, self.causal, self.device) == (other.keys, other.causal, other.device)
        if self.mask is None or other.mask is None:
            return known and self.mask is other.mask
        seen = self.mask is other.mask and self.written == other.written
        return known and seen and not self.mask.is_inference()  # whose writing nobody counts


@dataclass(frozen=True, eq=False)
class CallPattern(Pattern):
    """The pattern of one of headwise's own attentions: its mask and its position."""

    call: Call

    def allowed(self, rows: slice, keys: slice) -> Bool[Tensor, "#b #h r k"]:
        found = self.call.mask.rule(*self._indices(rows, keys))
        return found.expand(*found.shape[:2], rows.stop - rows.start, keys.stop - keys.start)

    def added(self, rows: slice, keys: slice) -> Tensor | None:
        b, h, query, key = self._indices(rows, keys)
        fixed, moving = self.call.mask.bias(b, h, query, key), None
        if Stage.SCORES in self.call.position.stages:
            moving = self.call.position.bias(
                self.call.q[:, :, rows], query.flatten(), key.flatten(), self.call.scale
            )
        if fixed is None or moving is None:
            return moving if fixed is None else fixed
        return fixed + moving

    def reach(self, rows: slice) -> slice:
        """Found by halving: tiles of the mask that say they are empty are left out."""
        shape = self.call.shape
        queries = range(rows.start + shape.offset, rows.stop + shape.offset)
        if not queries or not shape.keys:
            return slice(0, 0)

        def empty(start: int, stop: int) -> bool:
            return start >= stop or self.call.mask.tile(queries, range(start, stop)) is Tile.EMPTY

        low, high = 0, shape.keys  # the most keys at the start that are all empty
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if empty(0, middle) else (low, middle - 1)
        first, low, high = low, low, shape.keys
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if empty(middle, shape.keys) else (middle + 1, high)
        return slice(first, low)

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


def _open(mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return mask
    return mask > torch.finfo(mask.dtype).min / 2
