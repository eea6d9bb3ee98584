"""What the keys and queries of a running attention are: which text, which tokens, which places."""

import inspect
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CACHES = ("cache", "past_key_values")
"""What transformers calls the cache, in a model's inputs and outputs."""


@dataclass(frozen=True, eq=False)
class TokenStream:
    """The tokens of one text, those in the cache and those that are new.

    Attributes:
        seen: how many came in earlier passes.
        ids: (B, seen + new), or None where they are not known.
        mask: what the model was given as its padding mask, True = real; or None.
        cached: whether there is a cache, which may have room for more keys than came.
    """

    seen: int = 0
    ids: Tensor | None = None
    mask: Tensor | None = None
    cached: bool = False


@dataclass(frozen=True, eq=False)
class KeyInfo:
    """What an attention itself says of its keys.

    Attributes:
        real: (B, evicted + Lk or fewer), False on padding; None where it was not key_info.
        cross: whether its keys are another text than its queries; None means by its name.
        offset: the key that the first query stands at; None means the last query stands at the
            last key.
        evicted: how many tokens of the text came before the first key and are kept no more.
    """

    real: Tensor | None = None
    cross: bool | None = None
    offset: int | None = None
    evicted: int = 0


@dataclass(frozen=True, eq=False)
class TokenPositions:
    """Where the queries and keys of one attention stand in their text, and what both are.

    Tokens have their number in the whole text, those that a sliding cache let go included: there
    are ``base + Lk`` of them.

    Attributes:
        offset: the token that the first query stands at; None where they are different texts.
        queries: (B, Lq), False on padding.
        keys: (B, base + Lk), False on padding.
        tokens: (B, base + Lk), ids of the tokens, -1 where there is none; None where unknown.
        base: how many tokens came before the first key.
    """

    offset: int | None
    queries: Tensor
    keys: Tensor
    tokens: Tensor | None
    base: int = 0

    def same_as(self, other: "TokenPositions") -> bool:
        """Whether it is the same text in the same place."""
        pairs = zip(
            (self.queries, self.keys, self.tokens),
            (other.queries, other.keys, other.tokens),
            strict=True,
        )
        same = (self.offset, self.base) == (other.offset, other.base)
        return same and all(_alike(one, two) for one, two in pairs)

    def own(self, rows: slice, keys: int) -> slice | None:
        """The keys that these queries stand at, of ``keys``, and the one before them."""
        if self.offset is None:
            return None
        first = self.offset - self.base
        stop = min(max(rows.stop + first, 0), keys)
        return slice(min(max(rows.start + first - 1, 0), stop), stop)


@dataclass(frozen=True, eq=False)
class _CachedTokens:
    """The tokens that a cache holds, and a sign that nobody else has changed it since."""

    cache: Any
    ids: Tensor
    sign: "weakref.ref[Tensor] | None"

    def holds(self, cache: Any, seen: int, batch: int) -> bool:
        """Whether these are still the tokens: beam search reorders a cache, others cut it."""
        keys = _first_keys(cache)
        same = self.cache is cache and self.sign is not None and self.sign() is keys
        return same and self.ids.shape == (batch, seen)


class TokenTracker:
    """The texts of the pass that is running, read from what the model was given.

    Args:
        model: the model that is captured.
        two_stacks: whether it has an encoder's text and a decoder's.
    """

    def __init__(self, model: nn.Module, two_stacks: bool) -> None:
        self._model, self._two_stacks = model, two_stacks
        self._inputs: dict[str, Any] = {}
        self._memory: _CachedTokens | None = None
        self._sides = {"": TokenStream()}
        self._asking: dict[str, Tensor] = {}

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a pass: read its inputs."""
        try:
            bound = inspect.signature(self._model.forward).bind_partial(*args, **kwargs)
        except TypeError:  # the model says what is wrong
            bound = inspect.signature(lambda: None).bind_partial()
        given = dict(bound.arguments)
        self._inputs = given | given.pop("kwargs", {})
        self._asking.clear()
        self._sides = {"": self._side("")}
        if self._two_stacks:
            own = self._side("decoder_")
            self._sides = {"encoder": TokenStream(0, self._ids(""), self._mask("")), "decoder": own}

    def finish(self, output: Any) -> None:
        """After a pass: remember which tokens the cache holds now."""
        names = list(output) if isinstance(output, Mapping) else CACHES  # asking for others warns
        made = {name: getattr(output, name, None) for name in CACHES if name in names}
        cache = _cache(made) if _cache(made) is not None else _cache(self._inputs)
        ids = self._sides["decoder" if self._two_stacks else ""].ids
        self._inputs = {}
        keys = _first_keys(cache)
        if ids is None or keys is None:
            self._memory = None
        else:
            self._memory = _CachedTokens(cache, ids, weakref.ref(keys))

    def place(self, part: str, q: Tensor, k: Tensor, key_info: KeyInfo) -> TokenPositions:
        """Where the queries (B, H, Lq, D) of one attention stand among the keys (B, G, Lk, D).

        Args:
            part: of the model: "", "encoder", "decoder" or "cross".
            q: the queries.
            k: the keys.
            key_info: what the attention says of its keys.
        """
        if part == "cross":
            return self._between(q, k, key_info)
        read, (batch, _, queries, _), keys = (
            self._sides.get(part, TokenStream()),
            q.shape,
            k.shape[2],
        )
        base, total = key_info.evicted, keys
        if key_info.offset is not None:
            total = base + key_info.offset + queries
        elif read.cached:  # else it is a memory that is not transformers' cache
            total = read.seen + queries
            base = max(total - keys, 0)  # how many tokens a sliding cache let go
        first, sizes = total - queries, (batch, total, base + keys)
        known = _real(key_info.real, read.mask, sizes, q.device)
        asking = known[:, max(first, 0) : max(first + queries, 0)]
        if asking.shape[1] != queries:  # queries that stand at no key
            asking = torch.ones(batch, queries, dtype=torch.bool, device=q.device)
        self._asking[part] = asking
        return TokenPositions(first, asking, known, _window(read.ids, *sizes), base)

    def _between(self, q: Tensor, k: Tensor, key_info: KeyInfo) -> TokenPositions:
        """From the decoder's text to the encoder's."""
        read, written = (
            self._sides.get("encoder", TokenStream()),
            self._sides.get("decoder", TokenStream()),
        )
        batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
        sizes = (batch, keys, keys)
        known = _real(key_info.real, read.mask, sizes, q.device)
        total = written.seen + queries
        own = _window(written.mask, batch, total, total)
        own = None if own is None else own[:, written.seen :]
        own = self._asking.get("decoder") if own is None else own
        if own is None or own.shape != (batch, queries):
            own = torch.ones(batch, queries, dtype=torch.bool, device=q.device)
        return TokenPositions(None, own.to(q.device), known, _window(read.ids, *sizes))

    def _side(self, prefix: str) -> TokenStream:
        """The text that grows in the cache."""
        cache = _cache(self._inputs)
        length = getattr(cache, "get_seq_length", None)
        seen = int(length()) if callable(length) else 0
        new = self._ids(prefix)
        if new is not None and seen:
            memory = self._memory
            holds = memory is not None and memory.holds(cache, seen, new.shape[0])
            new = torch.cat((memory.ids, new), 1) if memory is not None and holds else None
        return TokenStream(seen, new, self._mask(prefix), cache is not None)

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
    """The tensor of keys that a transformers cache holds for its first layer."""
    cache = getattr(cache, "self_attention_cache", cache)
    layers = getattr(cache, "layers", None)
    keys = getattr(layers[0], "keys", None) if layers else None
    return keys if isinstance(keys, Tensor) else None


def _real(
    key_info: Tensor | None, mask: Tensor | None, sizes: tuple[int, int, int], device: torch.device
) -> Tensor:
    """(B, wanted), False on padding: as the attention was key_info, or the model, or all are real.

    Args:
        key_info: (B, wanted or fewer) or None.
        mask: the model's, or None.
        sizes: as for `_window`: B, total and wanted.
        device: where it is wanted.
    """
    found = key_info if key_info is not None else _window(mask, *sizes)
    batch, _, wanted = sizes
    if found is None:
        return torch.ones(batch, wanted, dtype=torch.bool, device=device)
    missing = wanted - found.shape[1]
    return nn.functional.pad(found.to(device), (0, missing)).expand(batch, -1)


def _window(tokens: Tensor | None, batch: int, total: int, wanted: int) -> Tensor | None:
    """Of what is known of ``total`` tokens that of the first ``wanted``; beyond them -1 or 0.

    None where it is not known, or is of another text.
    """
    if tokens is None or tokens.shape != (batch, total):
        return None
    found = tokens[:, :wanted]
    missing = wanted - found.shape[1]
    if not missing:
        return found
    return nn.functional.pad(found, (0, missing), value=0 if tokens.dtype == torch.bool else -1)
