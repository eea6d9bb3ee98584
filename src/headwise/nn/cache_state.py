"""What a module remembers between calls: the state of its cache, and earlier segments."""

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
from headwise.positions import Position, Stage
from headwise.shapes import AttentionShape, Index, Truth, check_integer


@dataclass(frozen=True, eq=False)
class CacheState:
    """The cache as it is before a call; all zeros without a cache."""

    cache: KVCache | None = None
    seen: int = 0  # how many tokens came before, which is the position of the first new one
    length: int = 0  # how many of them are in the cache
    real: Tensor | None = None  # (B, n), False on padding among the new keys; None if all are real
    memory: MemoryCache | None = None  # positions and masks are those of a call without a cache

    @classmethod
    def of(cls, cache: KVCache | MemoryCache | None) -> "CacheState":
        """The state of a cache of `headwise.nn`, or of none."""
        if cache is None:
            return NO_CACHE
        if isinstance(cache, MemoryCache):
            return cls(memory=cache)
        if not isinstance(cache, KVCache):
            raise BadType(
                "cache: expected a cache or None, got {cache_type}; for example "
                "headwise.nn.GrowingCache(), one for each attention of a model",
                cache_type=type(cache).__name__,
            )
        return cls(cache, cache.seen, cache.length)

    def with_padding(self, padding: Tensor | None) -> "CacheState":
        """The state with the ``key_padding_mask`` of the new keys, (B, n) or unbatched (n,)."""
        if self.cache is None or padding is None:
            return self
        return replace(self, real=~(padding if padding.dim() == 2 else padding[None]))

    def padding(self, new: Tensor | None, key: Tensor, batched: bool) -> Tensor | None:
        """The ``key_padding_mask`` of all keys, from that of the new keys (B, n, kdim).

        ``new`` is (B, n) or, if not ``batched``, (n,); with a cache it must be boolean.
        """
        if self.cache is None:
            return new
        real, size = self.cache.real, key.shape[:2]
        if self.cache.batch not in (None, size[0]):
            raise BadValue(
                "cache: it holds {expected} samples, got a batch of {batch}; reset() it "
                "before another sequence, or reorder(index) it where samples continue others",
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
        """A mask whose positions count from the first token of all, for the keys in the cache."""
        if self.cache is None:
            return mask
        _check_fixed(mask)
        dropped, kept = self.seen - self.length, self.cache.kept
        if not dropped or mask in (full(), causal()) or (mask.by_distance and not kept):
            return mask
        return Shifted(mask, dropped, kept)

    def shift_position(self, position: Position | None) -> Position | None:
        """A position that counts from the first token of all, for the keys in the cache."""
        dropped = self.seen - self.length
        if position is None or not dropped or not position.stages & {Stage.SCORES, Stage.VALUES}:
            return position
        return position if position.by_difference else ShiftedPosition(position, dropped)

    def keys_values(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Earlier and new keys and values, (B, G, S, D); the cache then has the new ones too.

        ``project`` gives the new ones; a memory is projected once.
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
    """A mask of the full sequence, for a cache that has dropped some of its tokens."""

    inner: Mask
    dropped: int  # how many tokens were dropped after the first ``kept``
    kept: int  # how many of the first keys have their own positions

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
    """A position of the full sequence, for a cache that has dropped some of its tokens."""

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
            "key_padding_mask: with a cache expected booleans (True = padding), got {got}, since "
            "a cache stores which keys are real and no floats; use mask < 0 for one of 0 and -inf",
            got=padding.dtype if isinstance(padding, Tensor) else type(padding).__name__,
        )
    if padding.shape != expected:
        raise BadValue(
            "key_padding_mask: with a cache expected {letters} = {expected}, the "
            "padding of the new keys alone, got {got}; the cache has that of the earlier keys",
            letters="(B, n)" if len(expected) == 2 else "(n,)",
            expected=tuple(expected),
            got=tuple(padding.shape),
        )


def _check_fixed(mask: Mask) -> None:
    """Check that later tokens do not change what the mask allows earlier ones."""
    if any(isinstance(part, FromMaskMod) and not part.positions for part in mask.walk()):
        raise BadValue(
            "cache: {mask} counts the queries of a call from 0, and with a cache these come later; "
            "use from_mask_mod(..., positions=True)",
            mask=mask,
        )
    if mask.content_dependent or any(
        isinstance(part, RandomBlocks | Appended) for part in mask.walk()
    ):
        raise BadValue(
            "cache: with a cache the mask cannot depend on future tokens, and {mask} is drawn for "
            "the full sequence; use hw.window(left, 0) and hw.global_tokens(...), or no cache",
            mask=mask,
        )


class SegmentMemory(nn.Module):
    """Carries the last hidden states of a layer's input from call to call.

    A call returns the memory and the input as one sequence, [memory; x], and keeps its last
    ``length`` states. Keys and values are computed from this context, queries from x alone, and the
    last query stands at the last key: ``context = memory(x); attention(x, context, context)``.

    With a causal mask and a window that reaches at most ``length`` back, one layer computes segment
    by segment the result of the full text. The states are detached: no gradient flows into an
    earlier segment. ``to`` moves them and ``deepcopy`` copies them, but they are not in the
    ``state_dict``, since they belong to a text and not to the model.

    Positions count from the first state in the memory, so the position encoding must depend on the
    difference key - query only.

    A second memory can carry the padding mask, (B, L, 1). Padding counts as distance, so it belongs
    before the first segment of a text or after its last.

    Args:
        length: how many states are kept; 0 keeps none.
        batch_first: whether the input is (B, L, E) and not (L, B, E), as for
            `MultiheadAttention`; an input (L, E) has no batch.

    Attributes:
        held: the states in memory, shaped as the input; None before the first call.

    Raises:
        BadType, BadValue: if length is no integer of at least 0; when called, if the input has
            another batch size, width, dtype or device than the memory.

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
        way_out = Text("the length of a segment is usual")
        length = check_integer("SegmentMemory", "length", length, 0, way_out)
        self.length, self.batch_first = length, batch_first
        self.register_buffer("held", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[memory; x], (B, M + L, E) or as ``batch_first`` says; its last states are kept."""
        axis = self._length_axis(x)
        context = x
        if self.held is not None:
            new, old = (
                (*t.shape[:axis], *t.shape[axis + 1 :], t.dtype, t.device) for t in (x, self.held)
            )
            if new != old:
                raise BadValue(
                    "x: the memory holds {old}, got {new}, and only the length may differ; reset() "
                    "it before another text",
                    old=described(self.held),
                    new=described(x),
                )
            context = torch.cat((self.held, x), axis)
        kept = min(self.length, context.shape[axis])
        self.held = context.detach().narrow(axis, context.shape[axis] - kept, kept).clone()
        return context

    def reset(self) -> None:
        """Empty the memory before another text."""
        self.held = None

    def reorder(self, index: Tensor) -> None:
        """Let sample i continue the old sample index[i], as in a beam search.

        ``index`` holds integers (B',) from 0 to B - 1; BadType and BadValue refuse any other.
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
                "x: expected (B, L, E), (L, B, E) or (L, E), got {shape}; add the axis "
                "of the states with x.unsqueeze(-1)",
                shape=tuple(x.shape),
            )
        return 1 if self.batch_first and x.dim() == 3 else 0
