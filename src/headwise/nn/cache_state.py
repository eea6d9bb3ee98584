"""State of the cache before a call: how padding, masks and positions count earlier tokens."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.masks import Mask, causal, full
from headwise.masks.mask import Tile
from headwise.masks.patterns.block_sparse import RandomBlocks
from headwise.masks.patterns.composed import Appended
from headwise.nn.cache import KVCache
from headwise.shapes import AttentionShape, Index, Truth


@dataclass(frozen=True, eq=False)
class CacheState:
    """The cache of one call as it was before; all zeros without a cache.

    Attributes:
        cache: the cache, or None.
        seen: how many tokens came before, which is the position of the first new one.
        length: how many of them are in the cache.
        real: (B, n), False on padding among the new keys; None where all are real.
    """

    cache: KVCache | None = None
    seen: int = 0
    length: int = 0
    real: Tensor | None = None

    @classmethod
    def of(cls, cache: KVCache | None) -> "CacheState":
        """The state of a cache of `headwise.nn`, or of none."""
        if cache is None:
            return NO_CACHE
        if not isinstance(cache, KVCache):
            raise BadType(
                "cache: expected a cache or None, got {cache_type}; for example "
                "headwise.nn.GrowingCache(), one for each attention of a model",
                cache_type=type(cache).__name__,
            )
        return cls(cache, cache.seen, cache.length)

    def with_padding(self, padding: Tensor | None) -> "CacheState":
        """The same with the ``key_padding_mask`` of the new keys, (B, n) or unbatched (n,)."""
        if self.cache is None or padding is None:
            return self
        return replace(self, real=~(padding if padding.dim() == 2 else padding[None]))

    def padding(self, new: Tensor | None, key: Tensor, batched: bool) -> Tensor | None:
        """The ``key_padding_mask`` of all keys, in the cache and new.

        Args:
            new: that of the new keys, (B, n) or unbatched (n,); must be boolean with a cache.
            key: (B, n, kdim), the new keys.
            batched: whether the input has a batch axis.
        """
        if self.cache is None:
            return new
        real, size = self.cache.real, key.shape[:2]
        self._check_batch(size[0])
        _check_padding(new, size if batched else size[1:])
        if new is None and real is None:
            return None
        if new is None:
            new = key.new_zeros(size, dtype=torch.bool)
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

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Earlier and new keys and values, (B, G, S, D); the cache then has the new ones too."""
        if self.cache is None:
            return k, v
        extended = self.cache.extend(k, v, self.real)
        return extended.k, extended.v

    def _check_batch(self, batch: int) -> None:
        expected = None if self.cache is None else self.cache.batch
        if expected not in (None, batch):
            raise BadValue(
                "cache: it holds {expected} samples, got a batch of {batch}; reset() it "
                "before another sequence, or reorder(index) it where samples continue others",
                expected=expected,
                batch=batch,
            )


NO_CACHE = CacheState()


@dataclass(frozen=True, repr=False)
class Shifted(Mask):
    """A mask of the full sequence, for a cache that has dropped some of its tokens.

    Attributes:
        inner: the mask of the full sequence.
        dropped: how many tokens were dropped after the first ``kept``.
        kept: how many of the first keys have their own positions.
    """

    inner: Mask
    dropped: int
    kept: int

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
    def biased(self) -> bool:
        return self.inner.biased

    @property
    def name(self) -> str:
        return f"{self.inner.name} of {self.dropped} tokens more"

    def resolve(self, shape: AttentionShape) -> Mask:
        shape = replace(shape, keys=shape.keys + self.dropped, offset=shape.offset + self.dropped)
        return Shifted(self.inner.resolve(shape), self.dropped, self.kept)

    def _position(self, k: Index) -> Index:
        return torch.where(k < self.kept, k, k + self.dropped)


def _check_padding(padding: Tensor | None, expected: tuple[int, ...]) -> None:
    if padding is None:
        return
    if not isinstance(padding, Tensor) or padding.dtype != torch.bool:
        raise BadType(
            "key_padding_mask: with a cache expected booleans (True = padding), got "
            "{got}, since a cache stores which keys are real and no floats; "
            "use mask < 0 for one of 0 and -inf",
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
    if mask.content_dependent or any(
        isinstance(part, RandomBlocks | Appended) for part in mask.walk()
    ):
        raise BadValue(
            "cache: with a cache the mask cannot depend on future tokens, and {mask} is drawn for "
            "the full sequence; use hw.window(left, 0) and hw.global_tokens(...), or no cache",
            mask=mask,
        )
