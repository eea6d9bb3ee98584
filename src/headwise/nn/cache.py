"""Key/value caches, with which each call projects only its new tokens.

    GrowingCache    keeps all tokens
    StaticCache     keeps all tokens, in memory that is allocated once
    SlidingCache    keeps the last tokens and the first few (attention sinks), in bounded memory
    MemoryCache     keeps the keys and values of an encoder's output, which is projected once

Each attention module of a model needs its own cache: ``layer(x, x, x, cache=cache)``. Keys are
stored before any rotary position is applied. The module counts positions from the first key in the
cache and gives the last new query the position of the last key, so masks and relative positions
agree with those of the full sequence.

To write your own cache, such as a paged or a quantised one, derive it from `KVCache`. Its method
`store` adds new keys and values and returns all of them. A cache that does not keep them in
``content`` also overrides `length`, `reset` and `reorder`, and `real` if there may be padding;
``examples/own_caches.py`` has two such caches.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.nn.validation import check_beam_index
from headwise.shapes import check_integer, describe


@dataclass(frozen=True, eq=False)
class KeyValues:
    """The keys and values in a cache, in the order of their positions."""

    k: Tensor  # (B, G, S, D)
    v: Tensor  # (B, G, S, Dv)
    real: Tensor | None  # (B, S), False on padding; None if no token is padding

    def map(self, function: Callable[[Tensor, int], Tensor]) -> "KeyValues":
        """Apply ``function(tensor, token_axis)`` to every tensor."""
        real = None if self.real is None else function(self.real, 1)
        return KeyValues(function(self.k, 2), function(self.v, 2), real)

    def reordered(self, index: Tensor) -> "KeyValues":
        """Return the old sample index[i] as sample i."""
        return self.map(lambda rows, _: rows.index_select(0, index))


class KVCache(ABC):
    """Abstract base class of caches, which store the keys and values of earlier calls.

    Attributes:
        seen: the number of tokens received so far, which is the position of the next token.
        content: the stored keys and values; None if there are none.
        batch: the batch size of the cache; None if the cache is empty.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.content: KeyValues | None = None
        self.batch: int | None = None
        self._first: KeyValues | None = None  # without tokens: sizes, dtypes and devices

    @property
    def length(self) -> int:
        """The number of tokens in the cache."""
        return 0 if self.content is None else self.content.k.shape[2]

    @property
    def real(self) -> Tensor | None:
        """A tensor (B, S), False on cached padding; None if no cached token is padding."""
        return None if self.content is None else self.content.real

    @property
    def kept(self) -> int:
        """The number of first tokens that the cache never drops."""
        return 0

    def extend(self, k: Tensor, v: Tensor, real: Tensor | None = None) -> KeyValues:
        """Add new tokens, and return all keys and values, earlier and new.

        Args:
            k: the new keys (B, G, n, D).
            v: the new values (B, G, n, Dv).
            real: (B, n), False on padding, which no query attends to; None means no padding.

        Raises:
            BadValue: if k or v does not fit the cached keys and values, or the cache is full.
        """
        _check(k, v, real, self._first)
        extended = self.store(k, v, real)
        if self._first is None:
            empty_k, empty_v = (x.new_empty(*x.shape[:2], 0, x.shape[3]) for x in (k, v))
            self._first = KeyValues(empty_k, empty_v, None)
        self.batch, self.seen = k.shape[0], self.seen + k.shape[2]
        return extended

    @abstractmethod
    def store(self, k: Tensor, v: Tensor, real: Tensor | None) -> KeyValues:
        """Keep new keys and values, and return those of all tokens that the call attends to.

        The arguments are those of `extend`, and are checked. `seen` does not count them yet.
        """

    def reset(self) -> None:
        """Forget every token, before another sequence."""
        self.seen, self.content, self.batch, self._first = 0, None, None, None

    def reorder(self, index: Tensor) -> None:
        """Replace sample i by the old sample index[i], as beam search does.

        ``index`` is an integer tensor (B',) with values from 0 to B - 1; any other index raises
        BadType or BadValue.
        """
        if self.batch is None:
            return
        check_beam_index(index, self.batch, Text("the cache"))
        self.batch = len(index)
        if self._first is not None:
            self._first = self._first.reordered(index)
        if self.content is not None:
            self.content = self.content.reordered(index)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<{self.length} of {self.seen} tokens held>)"


class GrowingCache(KVCache):
    """A cache that keeps every token; the only cache through which gradients flow.

    Example:
        >>> cache, token = GrowingCache(), torch.zeros(1, 2, 1, 4)
        >>> for _ in range(3):
        ...     keys_and_values = cache.extend(token, token)
        >>> keys_and_values.k.shape
        torch.Size([1, 2, 3, 4])
    """

    def store(self, k: Tensor, v: Tensor, real: Tensor | None) -> KeyValues:
        self.content = _concatenated(self.content, k, v, real)
        return self.content


class StaticCache(KVCache):
    """A cache of fixed capacity, whose memory is allocated once.

    Args:
        max_length: the capacity in tokens.

    Raises:
        BadType, BadValue: if max_length is not an integer of at least 1; in `extend`, if the tokens
            exceed the capacity, or if k or v requires a gradient.

    Example:
        >>> cache, token = StaticCache(5), torch.zeros(1, 2, 1, 4)
        >>> keys_and_values = cache.extend(token, token)
        >>> keys_and_values.k.shape, cache.length
        (torch.Size([1, 2, 1, 4]), 1)
    """

    def __init__(self, max_length: int) -> None:
        super().__init__()
        way_out = Text("use the length of the longest sequence")
        max_length = check_integer("StaticCache", "max_length", max_length, 1, way_out)
        self.max_length = max_length
        self._count = 0

    @property
    def length(self) -> int:
        return self._count

    def reset(self) -> None:
        super().reset()
        self._count = 0

    def store(self, k: Tensor, v: Tensor, real: Tensor | None) -> KeyValues:
        # `content` holds whole buffers: compiled code cannot take both a tensor and its view
        first, last = self._count, self._count + k.shape[2]
        if last > self.max_length:
            raise BadValue(
                "StaticCache: expected at most max_length={max_length} tokens, got {length}; "
                "increase max_length, call reset(), or use SlidingCache(length)",
                max_length=self.max_length,
                length=last,
            )
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise BadValue(
                "StaticCache: expected k and v without gradients, since the cache overwrites its "
                "memory; use torch.no_grad() or GrowingCache()"
            )
        buffers = self.content
        if buffers is None:
            length, batch, groups = self.max_length, k.shape[0], k.shape[1]
            new_k = k.new_zeros(batch, groups, length, k.shape[3])
            buffers = KeyValues(new_k, v.new_zeros(batch, groups, length, v.shape[3]), None)
        buffers.k[:, :, first:last] = k.detach()
        buffers.v[:, :, first:last] = v.detach()
        real = _concatenated_real(buffers.real, first, real, k)
        self.content, self._count = KeyValues(buffers.k, buffers.v, real), last
        return KeyValues(buffers.k[:, :, :last], buffers.v[:, :, :last], real)


class SlidingCache(KVCache):
    """A cache that keeps the last tokens and the first few, in bounded memory.

    A call attends to the cached tokens and to all of its new tokens. If the mask reaches at most
    ``length`` positions back, as ``causal() & window(length, 0)`` does, the output is that of the
    full sequence. As in the paper, positions skip the gap between the sinks and the last tokens.

    Args:
        length: the number of last tokens to keep, at least 1.
        sinks: the number of first tokens to keep as well.

    Raises:
        BadType, BadValue: if an argument is not an integer or is too small.

    Source: Xiao et al. 2023 (StreamingLLM), section 3.2.

    Example:
        >>> cache = SlidingCache(3, sinks=1)
        >>> keys_and_values = cache.extend(torch.zeros(1, 2, 7, 4), torch.zeros(1, 2, 7, 4))
        >>> keys_and_values.k.shape[2], cache.length, cache.seen
        (7, 4, 7)
    """

    def __init__(self, length: int, *, sinks: int = 0) -> None:
        super().__init__()
        length = check_integer(
            "SlidingCache", "length", length, 1, Text("use 1023 with the mask window(1023, 0)")
        )
        sinks = check_integer("SlidingCache", "sinks", sinks, 0, Text("use 0 for none, usually 4"))
        self.size, self.sinks = length, sinks

    @property
    def kept(self) -> int:
        return self.sinks

    def store(self, k: Tensor, v: Tensor, real: Tensor | None) -> KeyValues:
        extended = _concatenated(self.content, k, v, real)
        fits = extended.k.shape[2] <= self.sinks + self.size
        self.content = extended if fits else extended.map(self._ends)
        return extended

    def _ends(self, rows: Tensor, axis: int) -> Tensor:
        """Copy the first and the last rows, so that the memory of all other rows is freed."""
        first = rows.narrow(axis, 0, self.sinks)
        last = rows.narrow(axis, rows.shape[axis] - self.size, self.size)
        return torch.cat((first, last), axis)


class MemoryCache:
    """Keys and values of a memory, such as an encoder's output, projected in the first call only.

    ``layer(x, memory, memory, cache=cache)`` gives what it gives without a cache, and projects the
    memory once. Every call gets the same memory, of which later calls read the size alone, and its
    ``key_padding_mask`` and masks as without a cache. One belongs to one attention of one model.

    Attributes:
        content: the projected keys and values; None before the first call.

    Example:
        >>> import headwise as hw
        >>> layer, cache = hw.MultiheadAttention(8, 2, batch_first=True), MemoryCache()
        >>> memory = torch.zeros(1, 5, 8)
        >>> for step in range(3):
        ...     output, _ = layer(torch.zeros(1, 1, 8), memory, memory, cache=cache)
        >>> cache
        MemoryCache(<5 tokens>)
    """

    def __init__(self) -> None:
        self.content: KeyValues | None = None

    def projected(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """k (B, G, S, D) and v (B, G, S, Dv), from the function in the first call only."""
        if self.content is None:
            self.content = KeyValues(*project(), None)
        return self.content.k, self.content.v

    def check(self, memory: Tensor) -> None:
        """Check that a memory (B, S, kdim) has the size of the one that was projected."""
        if self.content is None:
            return
        batch, _, length, _ = self.content.k.shape
        if memory.shape[:2] != (batch, length):
            raise BadValue(
                "cache: it holds a memory of (B, S) = {expected}, got {got}; reset() it before "
                "another memory, or reorder(index) it where samples continue others",
                expected=(batch, length),
                got=tuple(memory.shape[:2]),
            )

    def reset(self) -> None:
        """Forget the memory, before another one."""
        self.content = None

    def reorder(self, index: Tensor) -> None:
        """Let sample i have the memory of the old sample index[i], as in a beam search."""
        if self.content is not None:
            check_beam_index(index, self.content.k.shape[0], Text("the cache"))
            self.content = self.content.reordered(index)

    def __repr__(self) -> str:
        length = 0 if self.content is None else self.content.k.shape[2]
        return f"MemoryCache(<{length} tokens>)"


def _concatenated(old: KeyValues | None, k: Tensor, v: Tensor, real: Tensor | None) -> KeyValues:
    if old is None:
        return KeyValues(k, v, real)
    real = _concatenated_real(old.real, old.k.shape[2], real, k)
    return KeyValues(torch.cat((old.k, k), 2), torch.cat((old.v, v), 2), real)


def _concatenated_real(
    old: Tensor | None, old_length: int, new: Tensor | None, k: Tensor
) -> Tensor | None:
    """Concatenate ``real`` of the old keys and of the new keys k; None if no key is padding."""
    if old is None and new is None:
        return None
    parts = [
        k.new_ones(k.shape[0], length, dtype=torch.bool) if part is None else part
        for part, length in ((old, old_length), (new, k.shape[2]))
    ]
    return torch.cat(parts, 1)


def _check(k: Tensor, v: Tensor, real: Tensor | None, content: KeyValues | None) -> None:
    if k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3]:
        shapes = f"k {tuple(k.shape)}, v {tuple(v.shape)}"
        raise BadValue("k, v: expected (B, G, n, D) and (B, G, n, Dv), got {shapes}", shapes=shapes)
    size = (k.shape[0], k.shape[2])
    if real is not None and (real.dtype != torch.bool or real.shape != size):
        raise BadValue(
            "real: expected booleans (B, n) = {expected}, True on real tokens, got {got}",
            expected=size,
            got=describe(real),
        )
    if content is None:
        return
    for name, new, old in (("k", k, content.k), ("v", v, content.v)):
        fixed = (new.shape[:2], new.shape[3], new.dtype, new.device)
        if fixed != (old.shape[:2], old.shape[3], old.dtype, old.device):
            raise BadValue(
                "{name}: the cache holds {old}, got {new}; call cache.reset() before a new "
                "sequence",
                name=name,
                old=described(old),
                new=described(new),
            )


def described(tensor: Tensor) -> Text:
    """Return the dtype, shape and device of a tensor for a message."""
    return Text("{tensor} on {device}", tensor=describe(tensor), device=tensor.device)
