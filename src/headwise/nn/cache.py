"""Keys and values of tokens that were seen before, so that a new token is projected alone.

    GrowingCache    all of them
    StaticCache     all of them, in memory that is taken once
    SlidingCache    the last ones, and the first few (attention sinks): bounded for ever

A cache belongs to one attention of one model: ``layer(x, x, x, cache=cache)``. It holds keys before
a position turns them; the attention then counts positions from the first key held, the last new
query standing at the last key, so that masks and relative positions agree with the whole sequence.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.masks.arguments import check_integer
from headwise.nn.validation import check_index

_ROOM = Text("give the longest sequence you will meet")


@dataclass(frozen=True, eq=False)
class Held:
    """What the new queries of a call may look at, the new keys being last.

    Attributes:
        k: (B, G, S, D).
        v: (B, G, S, Dv).
        real: (B, S), False on padding; None where there is none.
    """

    k: Tensor
    v: Tensor
    real: Tensor | None


class KVCache(ABC):
    """Keys and values of earlier calls.

    Attributes:
        seen: how many tokens came in all, so that the next one has this number.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._held: Held | None = None

    @property
    def length(self) -> int:
        """How many tokens are held."""
        return 0 if self._held is None else self._held.k.shape[2]

    @property
    def batch(self) -> int | None:
        """How many samples are held; None where nothing is."""
        return None if self._held is None else self._held.k.shape[0]

    @property
    def real(self) -> Tensor | None:
        """(B, S), False on padding among the tokens held; None where there is none."""
        return None if self._held is None else self._held.real

    @property
    def kept(self) -> int:
        """How many of the first tokens are never let go, the others standing behind them."""
        return 0

    def extend(self, k: Tensor, v: Tensor, real: Tensor | None = None) -> Held:
        """What is held and what is new; the new tokens are then held as well.

        Args:
            k: the new keys (B, G, n, D).
            v: the new values (B, G, n, Dv).
            real: (B, n), False on padding, whose keys nobody sees; None means all are real.

        Raises:
            BadValue: if sizes differ from those held, or the cache is full.
        """
        _check(k, v, real, self._held)
        held = self._extended(k, v, real)
        self.seen += k.shape[2]
        return held

    def reset(self) -> None:
        """Forget everything."""
        self.seen, self._held = 0, None

    def reorder(self, index: Tensor) -> None:
        """Let sample number i go on from sample index[i], as a beam search needs it.

        Args:
            index: integers (B',), each below B.

        Raises:
            BadType, BadValue: if it is no such tensor.
        """
        if self._held is None:
            return
        held, batch = self._held, self._held.k.shape[0]
        check_index(index, batch, Text("the cache"))
        real = None if held.real is None else held.real.index_select(0, index)
        self._reordered(held, index, real)

    @abstractmethod
    def _extended(self, k: Tensor, v: Tensor, real: Tensor | None) -> Held:
        """What `extend` gives, being held from now on as far as the cache goes."""

    def _reordered(self, held: Held, index: Tensor, real: Tensor | None) -> None:
        self._held = Held(held.k.index_select(0, index), held.v.index_select(0, index), real)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<{self.length} of {self.seen} tokens held>)"


class GrowingCache(KVCache):
    """Keeps every token. The only one that gradients flow through.

    Example:
        >>> cache, token = GrowingCache(), torch.zeros(1, 2, 1, 4)
        >>> for _ in range(3):
        ...     held = cache.extend(token, token)
        >>> held.k.shape
        torch.Size([1, 2, 3, 4])
    """

    def _extended(self, k: Tensor, v: Tensor, real: Tensor | None) -> Held:
        self._held = _joined(self._held, k, v, real)
        return self._held


class StaticCache(KVCache):
    """Keeps every token up to a number known before, in memory that is taken once.

    Args:
        max_length: how many tokens it can hold.

    Raises:
        BadType, BadValue: if max_length is no integer of at least 1; when called, if the tokens
            are too many, or if a gradient is wanted, which would need older contents back.

    Example:
        >>> cache, token = StaticCache(5), torch.zeros(1, 2, 1, 4)
        >>> held = cache.extend(token, token)
        >>> held.k.shape, cache.length
        (torch.Size([1, 2, 1, 4]), 1)
    """

    def __init__(self, max_length: int) -> None:
        super().__init__()
        check_integer("StaticCache", "max_length", max_length, 1, _ROOM)
        self.max_length = max_length
        self._count = 0

    @property
    def length(self) -> int:
        return self._count

    def reset(self) -> None:
        super().reset()
        self._count = 0

    def _extended(self, k: Tensor, v: Tensor, real: Tensor | None) -> Held:
        """Held is all the room, and no view of its tokens: compiled code cannot take both."""
        first, last = self._count, self._count + k.shape[2]
        self._refuse(last, torch.is_grad_enabled() and (k.requires_grad or v.requires_grad))
        room, length = self._held, self.max_length
        if room is None:
            room = Held(_room(k, length), _room(v, length), None)
        room.k[:, :, first:last] = k.detach()
        room.v[:, :, first:last] = v.detach()
        known = _joined_real(room.real, first, real, k)
        self._held, self._count = Held(room.k, room.v, known), last
        return Held(room.k[:, :, :last], room.v[:, :, :last], known)

    def _refuse(self, wanted: int, learns: bool) -> None:
        if wanted > self.max_length:
            raise BadValue(
                "StaticCache: holds max_length={max_length} tokens, got {wanted}; make "
                "it larger, reset() it, or use SlidingCache(length)",
                max_length=self.max_length,
                wanted=wanted,
            )
        if learns:
            raise BadValue(
                "StaticCache: k and v want a gradient, which memory written again cannot "
                "give; use torch.no_grad(), or GrowingCache()"
            )


class SlidingCache(KVCache):
    """Keeps the last tokens, and the first few for ever: its memory is bounded.

    A call sees what is held and all its new tokens; with a mask that reaches no further back than
    ``length``, such as ``causal() & window(length, 0)``, the result is that of the whole sequence.
    Between the sinks and the last tokens no gap is counted: a relative position sees the sinks
    where they stand in the cache, as in the paper.

    Args:
        length: how many of the last tokens are kept, at least 1.
        sinks: how many of the first are kept beside them.

    Raises:
        BadType, BadValue: if one is no integer, or too small.

    Source: Xiao et al. 2023 (StreamingLLM), section 3.2.

    Example:
        >>> cache = SlidingCache(3, sinks=1)
        >>> held = cache.extend(torch.zeros(1, 2, 7, 4), torch.zeros(1, 2, 7, 4))
        >>> held.k.shape[2], cache.length, cache.seen
        (7, 4, 7)
    """

    def __init__(self, length: int, *, sinks: int = 0) -> None:
        super().__init__()
        check_integer("SlidingCache", "length", length, 1, Text("1023 goes with window(1023, 0)"))
        check_integer("SlidingCache", "sinks", sinks, 0, Text("0 keeps none, 4 is usual"))
        self.size, self.sinks = length, sinks

    @property
    def kept(self) -> int:
        return self.sinks

    def _extended(self, k: Tensor, v: Tensor, real: Tensor | None) -> Held:
        every = _joined(self._held, k, v, real)
        self._held = self._kept(every)
        return every

    def _kept(self, every: Held) -> Held:
        if every.k.shape[2] <= self.sinks + self.size:
            return every
        k, v = (self._ends(t, 2) for t in (every.k, every.v))
        return Held(k, v, None if every.real is None else self._ends(every.real, 1))

    def _ends(self, rows: Tensor, axis: int) -> Tensor:
        """Its first and its last rows, copied, so that the others are let go."""
        tokens = rows.shape[axis]
        first = rows.narrow(axis, 0, self.sinks)
        return torch.cat((first, rows.narrow(axis, tokens - self.size, self.size)), axis)


def _joined(held: Held | None, k: Tensor, v: Tensor, real: Tensor | None) -> Held:
    if held is None:
        return Held(k, v, real)
    known = _joined_real(held.real, held.k.shape[2], real, k)
    return Held(torch.cat((held.k, k), 2), torch.cat((held.v, v), 2), known)


def _joined_real(old: Tensor | None, before: int, new: Tensor | None, k: Tensor) -> Tensor | None:
    """Which keys are real, of ``before`` old ones and the new."""
    if old is None and new is None:
        return None
    batch = k.shape[0]
    parts = ((old, before), (new, k.shape[2]))
    rows = (
        torch.ones(batch, size, dtype=torch.bool, device=k.device) if part is None else part
        for part, size in parts
    )
    return torch.cat(tuple(rows), 1)


def _room(like: Tensor, length: int) -> Tensor:
    batch, groups, _, dim = like.shape
    return like.new_zeros(batch, groups, length, dim)


def _check(k: Tensor, v: Tensor, real: Tensor | None, held: Held | None) -> None:
    shapes = f"k {tuple(k.shape)}, v {tuple(v.shape)}"
    if k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3]:
        raise BadValue("k, v: expected (B, G, n, D) and (B, G, n, Dv), got {shapes}", shapes=shapes)
    if real is not None and (real.dtype != torch.bool or real.shape != (k.shape[0], k.shape[2])):
        raise BadValue(
            "real: expected booleans (B, n) = {value}, True on real tokens, got "
            "{real_dtype} {real_shape}",
            value=(k.shape[0], k.shape[2]),
            real_dtype=real.dtype,
            real_shape=tuple(real.shape),
        )
    if held is None:
        return
    for name, new, old in (("k", k, held.k), ("v", v, held.v)):
        same = (new.shape[:2], new.shape[3], new.dtype, new.device)
        if same != (old.shape[:2], old.shape[3], old.dtype, old.device):
            raise BadValue(
                "{name}: the cache holds {old_dtype} {old_shape} on {old_device}, got "
                "{new_dtype} {new_shape} on {new_device}; reset() it before another "
                "sequence",
                name=name,
                old_dtype=old.dtype,
                old_shape=tuple(old.shape),
                old_device=old.device,
                new_dtype=new.dtype,
                new_shape=tuple(new.shape),
                new_device=new.device,
            )
