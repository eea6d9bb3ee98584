"""State that a module carries between calls: the state of its cache, and earlier segments."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks import Mask, causal, full
from headwise.masks.mask import Tile
from headwise.masks.mask_mod import FromMaskMod
from headwise.masks.patterns.block_sparse import RandomBlocks
from headwise.masks.patterns.composed import Appended
from headwise.nn.cache import KVCache, MemoryCache, described
from headwise.nn.validation import check_beam_index
from headwise.positions import Position
from headwise.shapes import AttentionShape, Index, Truth, check_integer


@dataclass(frozen=True, eq=False)
class CacheState:
    """The state of a cache before a call; without a cache, all counts are 0."""

    cache: KVCache | None = None
    seen: int = 0  # the number of earlier tokens, which is the position of the first new token
    length: int = 0  # the number of tokens in the cache
    real: Tensor | None = None  # (B, n), False on padding of the new keys; None without padding
    memory: MemoryCache | None = None  # positions and masks are those of a call without a cache

    @classmethod
    def of(cls, cache: KVCache | MemoryCache | None) -> "CacheState":
        """Return the state of a cache of `headwise.nn`, or `NO_CACHE` for None."""
        if cache is None:
            return NO_CACHE
        if isinstance(cache, MemoryCache):
            return cls(memory=cache)
        if not isinstance(cache, KVCache):
            raise BadType(
                "cache: expected a headwise cache or None, got {cache_type}; pass for example "
                "headwise.nn.GrowingCache(), a separate cache for each attention module",
                cache_type=type(cache).__name__,
            )
        return cls(cache, cache.seen, cache.length)

    def with_padding(self, padding: Tensor | None) -> "CacheState":
        """Return the state with the ``key_padding_mask`` (B, n) or (n,) of the new keys."""
        if self.cache is None or padding is None:
            return self
        return replace(self, real=~(padding if padding.dim() == 2 else padding[None]))

    def padding(self, new: Tensor | None, key: Tensor, batched: bool) -> Tensor | None:
        """Return the ``key_padding_mask`` of all keys, cached and new.

        ``key`` (B, n, kdim) are the new keys. Their padding ``new`` is (B, n), or (n,) if not
        ``batched``; with a cache it must be boolean.
        """
        if self.cache is None:
            return new
        real, size = self.cache.real, key.shape[:2]
        if self.cache.batch not in (None, size[0]):
            raise BadValue(
                "cache: it holds {expected} samples, got a batch of {batch}; call cache.reset() "
                "before a new sequence, or cache.reorder(index) to select samples",
                expected=self.cache.batch,
                batch=size[0],
            )
        _check_padding(new, size if batched else size[1:])
        if new is None and real is None:
            return None
        new = key.new_zeros(size, dtype=torch.bool) if new is None else new
        old = key.new_zeros(size[0], self.length, dtype=torch.bool) if real is None else ~real
        padding = torch.cat((old, new.view(size).to(key.device)), 1)
        return padding if batched else padding[0]

    def shift(self, mask: Mask) -> Mask:
        """Return a mask for the cached keys that counts positions from the very first token."""
        if self.cache is None:
            return mask
        _check_fixed(mask)
        dropped, kept = self.seen - self.length, self.cache.kept
        if not dropped or mask in (full(), causal()) or (mask.by_distance and not kept):
            return mask
        return Shifted(mask, dropped, kept)

    def shift_position(self, position: Position | None) -> Position | None:
        """Return a position encoding for the cached keys that counts from the very first token."""
        dropped = self.seen - self.length
        if position is None or not dropped or not position.acts_after_content:
            return position
        return position if position.by_difference else ShiftedPosition(position, dropped)

    def keys_values(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Add new keys and values to the cache; return earlier and new ones, (B, G, S, D).

        ``project`` computes the new ones; it is called only once for a memory.
        """
        if self.memory is not None:
            return self.memory.projected(project)
        k, v = project()
        if self.cache is None:
            return k, v
        extended = self.cache.extend(k, v, self.real)
        return extended.k, extended.v


NO_CACHE = CacheState()


@dataclass(frozen=True, repr=False)
class Shifted(Mask):
    """A mask of the full sequence, applied to a cache that has dropped tokens."""

    inner: Mask
    dropped: int  # the number of tokens dropped after the first ``kept`` tokens
    kept: int  # the number of first tokens that the cache never drops

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return self.inner.rule(b, h, q + self.dropped, self._position(k))

    def bias(self, b: Index, h: Index, q: Index, k: Index) -> Tensor | None:
        return self.inner.bias(b, h, q + self.dropped, self._position(k))

    def tile(self, q: range, k: range) -> Tile:
        queries = range(q[0] + self.dropped, q[-1] + 1 + self.dropped)
        if k[-1] < self.kept:
            return self.inner.tile(queries, k)
        if k[0] < self.kept:
            return Tile.MIXED
        return self.inner.tile(queries, range(k[0] + self.dropped, k[-1] + 1 + self.dropped))

    @property
    def name(self) -> str:
        return f"{self.inner.name} of {self.dropped} tokens more"

    def resolve(self, shape: AttentionShape) -> Mask:
        shape = replace(shape, keys=shape.keys + self.dropped, offset=shape.offset + self.dropped)
        return Shifted(self.inner.resolve(shape), self.dropped, self.kept)

    def _position(self, k: Index) -> Index:
        return torch.where(k < self.kept, k, k + self.dropped)


class ShiftedPosition(Position):
    """A position encoding of the full sequence, applied to a cache that has dropped tokens."""

    def __init__(self, inner: Position, dropped: int) -> None:
        super().__init__()
        self.inner, self.dropped, self.stages = inner, dropped, inner.stages

    def content(self, q: Tensor, k: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor]:
        return self.inner.content(q, k, shape)

    def bias(self, q: Tensor, query: Tensor, key: Tensor, scale: float) -> Tensor | None:
        return self.inner.bias(q, query + self.dropped, key + self.dropped, scale)

    def values(self, weights: Tensor, query: Tensor, key: Tensor) -> Tensor | None:
        return self.inner.values(weights, query + self.dropped, key + self.dropped)

    def expected_sizes(self) -> dict[str, int]:
        return self.inner.expected_sizes()


def _check_padding(padding: Tensor | None, expected: tuple[int, ...]) -> None:
    if padding is None:
        return
    if not isinstance(padding, Tensor) or padding.dtype != torch.bool:
        raise BadType(
            "key_padding_mask: with a cache, expected a boolean tensor (True = padding), got "
            "{got}; turn a mask of 0 and -inf into booleans with mask < 0",
            got=padding.dtype if isinstance(padding, Tensor) else type(padding).__name__,
        )
    if padding.shape != expected:
        raise BadValue(
            "key_padding_mask: with a cache, expected the padding of the new keys only, {letters} "
            "= {expected}, got {got}; the cache stores the padding of the earlier keys",
            letters="(B, n)" if len(expected) == 2 else "(n,)",
            expected=tuple(expected),
            got=tuple(padding.shape),
        )


def _check_fixed(mask: Mask) -> None:
    """Check that later tokens do not change the pairs that the mask allows for earlier tokens."""
    if any(isinstance(part, FromMaskMod) and not part.positions for part in mask.walk()):
        raise BadValue(
            "cache: {mask} numbers the queries of every call from 0, but with a cache they have "
            "later positions; use from_mask_mod(..., positions=True)",
            mask=mask,
        )
    if mask.content_dependent or any(
        isinstance(part, RandomBlocks | Appended) for part in mask.walk()
    ):
        raise BadValue(
            "cache: with a cache the mask cannot depend on future tokens, but {mask} is built for "
            "the full sequence; use hw.window(left, 0) and hw.global_tokens(...), or no cache",
            mask=mask,
        )


class SegmentMemory(nn.Module):
    """A memory of the last hidden states of a layer's input, as in Transformer-XL.

    A call returns the memory and the input as one sequence, [memory; x], and stores the last
    ``length`` states of this sequence. Compute keys and values from the returned context, and
    queries from x only: ``context = memory(x); attention(x, context, context)``. The last query
    then has the position of the last key.

    With a causal mask and a window that reaches at most ``length`` positions back, one layer that
    runs segment by segment gives the output of the full text. The stored states are detached, so no
    gradient flows into an earlier segment. ``to`` moves them and ``deepcopy`` copies them. They are
    not in the ``state_dict``, since they belong to a text and not to the model.

    Positions count from the first state in the memory, so the position encoding may depend only on
    the difference key - query.

    A second memory can carry the padding mask, (B, L, 1). Padding counts as distance, so put
    padding before the first segment of a text or after the last segment.

    Args:
        length: the number of states to keep; 0 keeps none.
        batch_first: whether the input is (B, L, E) instead of (L, B, E), as for
            `MultiheadAttention`; an input (L, E) is unbatched.

    Attributes:
        held: the stored states, with the axes of the input; None before the first call.

    Raises:
        BadType, BadValue: if length is not an integer of at least 0; when called, if the batch
            size, width, dtype or device of the input differs from that of the memory.

    Source: Dai et al. 2019 (Transformer-XL), section 3.2, where length is M and [memory; x] is
        the concatenation of SG(h_tau) and h_tau+1.

    Example:
        >>> memory = SegmentMemory(3, batch_first=True)
        >>> [tuple(memory(torch.zeros(1, 2, 4)).shape) for _ in range(3)]
        [(1, 2, 4), (1, 4, 4), (1, 5, 4)]
    """

    held: Tensor | None

    def __init__(self, length: int, *, batch_first: bool = False) -> None:
        super().__init__()
        way_out = Text("the length of one segment is a usual choice")
        length = check_integer("SegmentMemory", "length", length, 0, way_out)
        self.length, self.batch_first = length, batch_first
        self.register_buffer("held", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [memory; x], (B, M + L, E) with ``batch_first``, and store its last states."""
        axis = self._length_axis(x)
        context = x
        if self.held is not None:
            new, old = (
                (*t.shape[:axis], *t.shape[axis + 1 :], t.dtype, t.device) for t in (x, self.held)
            )
            if new != old:
                raise BadValue(
                    "x: the memory holds {old}, got {new}, but only the length may differ; call "
                    "reset() before a new text",
                    old=described(self.held),
                    new=described(x),
                )
            context = torch.cat((self.held, x), axis)
        kept = min(self.length, context.shape[axis])
        self.held = context.detach().narrow(axis, context.shape[axis] - kept, kept).clone()
        return context

    def reset(self) -> None:
        """Empty the memory, as needed before a new text."""
        self.held = None

    def reorder(self, index: Tensor) -> None:
        """Replace sample i by the old sample index[i], as beam search does.

        ``index`` is an integer tensor (B',) with values from 0 to B - 1; any other index raises
        BadType or BadValue.
        """
        if self.held is None:
            return
        axis = 1 - self._length_axis(self.held)
        batch = self.held.shape[axis] if self.held.dim() == 3 else 0
        check_beam_index(index, batch, Text("the memory"))
        self.held = self.held.index_select(axis, index)

    def extra_repr(self) -> str:
        held = 0 if self.held is None else self.held.shape[self._length_axis(self.held)]
        return f"{self.length}, batch_first={self.batch_first}, {held} held"

    def _length_axis(self, x: Tensor) -> int:
        if x.dim() not in (2, 3):
            raise BadValue(
                "x: expected (B, L, E), (L, B, E) or (L, E), got {shape}; add a missing feature "
                "axis with x.unsqueeze(-1)",
                shape=tuple(x.shape),
            )
        return 1 if self.batch_first and x.dim() == 3 else 0
