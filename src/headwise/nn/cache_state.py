"""What a call with a cache has to know of the calls before it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.masks import Mask, causal, full
from headwise.masks.mask import Tile
from headwise.masks.patterns.appended import Appended
from headwise.masks.patterns.block_sparse import RandomBlocks
from headwise.nn.cache import KVCache
from headwise.shapes import AttentionShape, Index, Truth


@dataclass(frozen=True, eq=False)
class CacheState:
    """The cache of one call as it stood before; all zeros where there is none.

    Attributes:
        cache: what holds the keys and values, or None.
        seen: how many tokens came before, so that the first new one has this number.
        length: how many of them are held.
        real: (B, n), False on padding among the new keys; None where all are real.
    """

    cache: KVCache | None = None
    seen: int = 0
    length: int = 0
    real: Tensor | None = None

    @classmethod
    def of(cls, cache: KVCache | None) -> "CacheState":
        """The past in a cache.

        Raises:
            BadType: if it is no cache of `headwise.nn`.
        """
        if cache is None:
            return cls()
        if not isinstance(cache, KVCache):
            raise BadType(
                "cache: expected a cache or None, got {cache_type}; for example "
                "headwise.nn.GrowingCache(), one for each attention of a model",
                cache_type=type(cache).__name__,
            )
        return cls(cache, cache.seen, cache.length)

    def knowing(self, padded: Tensor | None) -> "CacheState":
        """The same with the ``key_padding_mask`` of the new keys, (B, n) or unbatched (n,)."""
        if self.cache is None or padded is None:
            return self
        return replace(self, real=~(padded if padded.dim() == 2 else padded[None]))

    def padding(self, padded: Tensor | None, key: Tensor, batched: bool) -> Tensor | None:
        """The ``key_padding_mask`` of all keys, held and new, from that of the new ones.

        Args:
            padded: (B, n) or unbatched (n,), True = padding.
            key: (B, n, kdim), the new keys.
            batched: whether the input has a batch axis.

        Raises:
            BadType: if it is not boolean: a cache remembers padding, and no floats.
            BadValue: if the batch is not the one held, or the mask does not fit the new keys.
        """
        if self.cache is None:
            return padded
        known, size = self.cache.real, key.shape[:2]
        self._check(padded, size, batched)
        if padded is None and known is None:
            return None
        new = torch.zeros(size, dtype=torch.bool, device=key.device) if padded is None else padded
        held = torch.ones(size[0], self.length, dtype=torch.bool, device=key.device)
        old = ~(held if known is None else known)
        whole = torch.cat((old, new.view(size).to(key.device)), 1)
        return whole if batched else whole[0]

    def placed(self, mask: Mask) -> Mask:
        """A mask that counts tokens from the first that ever came, for the keys that are held.

        Raises:
            BadValue: if what the mask allows hangs on tokens that are still to come.
        """
        if self.cache is None:
            return mask
        _check_lasting(mask)
        dropped, kept = self.seen - self.length, self.cache.kept
        if not dropped or mask in (full(), causal()) or (mask.by_distance and not kept):
            return mask
        return Slid(mask, dropped, kept)

    def extended(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """What is held and what is new, (B, G, S, D); the new is held from now on."""
        if self.cache is None:
            return k, v
        held = self.cache.extend(k, v, self.real)
        return held.k, held.v

    def _check(self, padded: Tensor | None, size: tuple[int, ...], batched: bool) -> None:
        batch = None if self.cache is None else self.cache.batch
        if batch is not None and batch != size[0]:
            raise BadValue(
                "cache: it holds {batch} samples, got a batch of {size_0}; reset() it "
                "before another sequence, or reorder(index) it where samples go on from "
                "others",
                batch=batch,
                size_0=size[0],
            )
        if padded is None:
            return
        if not isinstance(padded, Tensor) or padded.dtype != torch.bool:
            got = padded.dtype if isinstance(padded, Tensor) else type(padded).__name__
            raise BadType(
                "key_padding_mask: with a cache expected booleans (True = padding), got "
                "{got}: it remembers which keys are real, and nothing to add to scores; "
                "use mask < 0 for one of 0 and -inf",
                got=got,
            )
        expected = tuple(size) if batched else tuple(size[1:])
        if tuple(padded.shape) != expected:
            letters = "(B, n)" if batched else "(n,)"
            raise BadValue(
                "key_padding_mask: with a cache expected {letters} = {expected}, the "
                "padding of the new keys alone, got {padded_shape}; that of the keys "
                "held is known",
                letters=letters,
                expected=expected,
                padded_shape=tuple(padded.shape),
            )


@dataclass(frozen=True, repr=False)
class Slid(Mask):
    """A mask of tokens as they came, seen by a cache that let ``dropped`` of them go.

    Its first ``kept`` keys have their own numbers, the others stand ``dropped`` further on.
    """

    inner: Mask
    dropped: int
    kept: int

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return self.inner.rule(b, h, q + self.dropped, self._came(k))

    def bias(self, b: Index, h: Index, q: Index, k: Index) -> Tensor | None:
        return self.inner.bias(b, h, q + self.dropped, self._came(k))

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

    def resolve(self, frame: AttentionShape) -> Mask:
        came = replace(frame, keys=frame.keys + self.dropped, offset=frame.offset + self.dropped)
        return Slid(self.inner.resolve(came), self.dropped, self.kept)

    def _came(self, k: Index) -> Index:
        return torch.where(k < self.kept, k, k + self.dropped)


def _check_lasting(mask: Mask) -> None:
    """Refuse a mask that later tokens would change."""
    if mask.content_dependent or any(
        isinstance(part, RandomBlocks | Appended) for part in mask.walk()
    ):
        raise BadValue(
            "cache: with it, whom a query sees must not hang on tokens still to come, "
            "and {mask} is drawn for a whole sequence; use hw.window(left, 0) and "
            "hw.global_tokens(...), or no cache",
            mask=mask,
        )
