"""The token ids and positions of the queries and keys of an attention call."""

import inspect
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CACHES = ("cache", "past_key_values")  # the names of the cache in a model's inputs and outputs


@dataclass(frozen=True, eq=False)
class TokenStream:
    """The tokens of a text: those in the cache and the new ones.

    ``ids`` (B, seen + new) and ``mask``, False on padding, are None if unknown. ``cached`` is true
    if there is a cache, which may have room for more keys.
    """

    seen: int = 0
    ids: Tensor | None = None
    mask: Tensor | None = None
    cached: bool = False


@dataclass(frozen=True, eq=False)
class KeyInfo:
    """The information of an attention call about its keys.

    Attributes:
        real: (B, evicted + Lk or fewer), False on padding; None if unknown.
        cross: whether it is cross-attention; None to decide by the name of the module.
        offset: the index of the key at the first query; None aligns the last query and last key.
        evicted: the number of tokens before the first key that the cache has evicted.
    """

    real: Tensor | None = None
    cross: bool | None = None
    offset: int | None = None
    evicted: int = 0


@dataclass(frozen=True, eq=False)
class TokenPositions:
    """The positions and token ids of the queries and keys of an attention call in their text.

    Positions count all ``base + Lk`` tokens, including those that a sliding cache has evicted.

    Attributes:
        offset: the position of the first query; None in cross-attention.
        queries: (B, Lq), False on padding.
        keys: (B, base + Lk), False on padding.
        tokens: the token ids (B, base + Lk), -1 where there is no token; None if unknown.
        base: the number of tokens before the first key.
    """

    offset: int | None
    queries: Tensor
    keys: Tensor
    tokens: Tensor | None
    base: int = 0

    def same_as(self, other: "TokenPositions") -> bool:
        """Return whether both have the same positions, padding and token ids."""
        same = (self.offset, self.base) == (other.offset, other.base)
        names = ("queries", "keys", "tokens")
        return same and all(_alike(getattr(self, name), getattr(other, name)) for name in names)

    def own(self, rows: slice, keys: int) -> slice | None:
        """Return the keys at the positions of ``rows`` and the key before; None for other texts."""
        if self.offset is None:
            return None
        first = self.offset - self.base
        stop = min(max(rows.stop + first, 0), keys)
        return slice(min(max(rows.start + first - 1, 0), stop), stop)


@dataclass(frozen=True, eq=False)
class _CachedTokens:
    """The token ids in a cache, and the keys of its first layer to detect changes."""

    cache: Any
    ids: Tensor
    keys: "weakref.ref[Tensor]"

    def holds(self, cache: Any, seen: int, batch: int) -> bool:
        """Return whether the ids are current: beam search reorders a cache, cropping cuts it."""
        same = self.cache is cache and self.keys() is _first_keys(cache)
        return same and self.ids.shape == (batch, seen)


class TokenTracker:
    """Reads the token ids of each forward pass from the inputs of the model."""

    def __init__(self, model: nn.Module, two_stacks: bool) -> None:
        self._model, self._two_stacks = model, two_stacks
        self._inputs: dict[str, Any] = {}
        self._memory: _CachedTokens | None = None
        self._streams = {"": TokenStream()}
        self._real_queries: dict[str, Tensor] = {}

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read the inputs before a forward pass."""
        try:
            bound = inspect.signature(self._model.forward).bind_partial(*args, **kwargs)
            inputs = dict(bound.arguments)
        except TypeError:  # the model will raise it
            inputs = {}
        self._inputs = inputs | inputs.pop("kwargs", {})
        self._real_queries.clear()
        if self._two_stacks:
            encoder = TokenStream(0, self._ids(""), self._mask(""))
            self._streams = {"encoder": encoder, "decoder": self._growing_stream("decoder_")}
        else:
            self._streams = {"": self._growing_stream("")}

    def finish(self, output: Any) -> None:
        """Store the token ids in the cache after a forward pass."""
        names = list(output) if isinstance(output, Mapping) else CACHES  # reading other keys warns
        outputs = {name: getattr(output, name, None) for name in CACHES if name in names}
        cache = _cache(outputs) if _cache(outputs) is not None else _cache(self._inputs)
        ids = self._streams["decoder" if self._two_stacks else ""].ids
        self._inputs = {}
        keys, self._memory = _first_keys(cache), None
        if ids is not None and keys is not None:
            self._memory = _CachedTokens(cache, ids, weakref.ref(keys))

    def place(self, part: str, q: Tensor, k: Tensor, key_info: KeyInfo) -> TokenPositions:
        """Return the positions and token ids of q and of k, which is without appended keys."""
        if part == "cross":
            return self._place_cross(q, k, key_info)
        stream = self._streams.get(part, TokenStream())
        batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
        base, total = key_info.evicted, keys
        if key_info.offset is not None:
            total = base + key_info.offset + queries
        elif stream.cached:  # otherwise it is not a cache of transformers
            total = stream.seen + queries
            base = max(total - keys, 0)  # tokens that a sliding cache has evicted
        first, sizes = total - queries, (batch, total, base + keys)
        real = _real(key_info.real, stream.mask, sizes, q.device)
        real_queries = real[:, max(first, 0) : max(first + queries, 0)]
        if real_queries.shape[1] != queries:  # a query's token is not among the keys
            real_queries = torch.ones(batch, queries, dtype=torch.bool, device=q.device)
        self._real_queries[part] = real_queries
        return TokenPositions(first, real_queries, real, _window(stream.ids, *sizes), base)

    def _place_cross(self, q: Tensor, k: Tensor, key_info: KeyInfo) -> TokenPositions:
        """Return the positions of queries in the decoder's text and keys in the encoder's text."""
        encoder, decoder = (self._streams.get(p, TokenStream()) for p in ("encoder", "decoder"))
        batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
        sizes, total = (batch, keys, keys), decoder.seen + queries
        real = _real(key_info.real, encoder.mask, sizes, q.device)
        mask = _window(decoder.mask, batch, total, total)
        own = self._real_queries.get("decoder") if mask is None else mask[:, decoder.seen :]
        if own is None or own.shape != (batch, queries):
            own = torch.ones(batch, queries, dtype=torch.bool, device=q.device)
        return TokenPositions(None, own.to(q.device), real, _window(encoder.ids, *sizes))

    def _growing_stream(self, prefix: str) -> TokenStream:
        cache, memory, ids = _cache(self._inputs), self._memory, self._ids(prefix)
        length = getattr(cache, "get_seq_length", None)
        seen = int(length()) if callable(length) else 0
        if ids is not None and seen:
            holds = memory is not None and memory.holds(cache, seen, ids.shape[0])
            ids = torch.cat((memory.ids, ids), 1) if memory is not None and holds else None
        return TokenStream(seen, ids, self._mask(prefix), cache is not None)

    def _ids(self, prefix: str) -> Tensor | None:
        ids = self._inputs.get(f"{prefix}input_ids")
        return ids if isinstance(ids, Tensor) and ids.dim() == 2 else None

    def _mask(self, prefix: str) -> Tensor | None:
        mask = self._inputs.get(f"{prefix}attention_mask")
        return mask != 0 if isinstance(mask, Tensor) and mask.dim() == 2 else None


def _alike(one: Tensor | None, two: Tensor | None) -> bool:
    if one is None or two is None:
        return one is two
    return one.shape == two.shape and torch.equal(one, two)


def _cache(named: Mapping[str, Any]) -> Any:
    return next((named[name] for name in CACHES if named.get(name) is not None), None)


def _first_keys(cache: Any) -> Tensor | None:
    cache = getattr(cache, "self_attention_cache", cache)
    layers = getattr(cache, "layers", None)
    keys = getattr(layers[0], "keys", None) if layers else None
    return keys if isinstance(keys, Tensor) else None


def _real(
    own: Tensor | None, mask: Tensor | None, sizes: tuple[int, int, int], device: torch.device
) -> Tensor:
    """Return (B, length), False on padding, from ``own``, else ``mask``, else all True."""
    real = _window(mask, *sizes) if own is None else own
    batch, _, length = sizes
    if real is None:
        return torch.ones(batch, length, dtype=torch.bool, device=device)
    return nn.functional.pad(real.to(device), (0, length - real.shape[1])).expand(batch, -1)


def _window(tokens: Tensor | None, batch: int, total: int, length: int) -> Tensor | None:
    """Return ``length`` of ``total`` tokens, padded by -1 or False; None if the shape differs."""
    if tokens is None or tokens.shape != (batch, total):
        return None
    missing = max(length - total, 0)
    padding = 0 if tokens.dtype == torch.bool else -1
    return nn.functional.pad(tokens[:, :length], (0, missing), value=padding)
