"""Conversion of the masks of transformers models to headwise masks.

transformers passes a rule ``(b, h, q, k) -> bool`` that is composed of functions in
`transformers.masking_utils`. Rules of known functions become headwise masks, whose blocked tiles
are skipped. Any other rule becomes a boolean tensor, as in transformers' "sdpa", with equal result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import getclosurevars
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from headwise.errors import BadType
from headwise.masks import Mask, causal, documents, full, padding, window
from headwise.masks.mask import Tile
from headwise.nn.torch_compat import intersect

Rule = Callable[..., Any]
"""A mask function of transformers, (sample, head, query, key) -> True = may attend."""


@dataclass(frozen=True, eq=False)
class PatternMask:
    """The mask that a model passes to its attention modules instead of a (B, 1, Lq, Lk) tensor."""

    mask: Mask  # key 0 is the first key in the cache
    offset: int  # the position of the first query among the keys in the cache
    first: int  # the position of the first cached key in the sequence; not 0 in a sliding cache
    ndim: int = 4  # the number of axes of the replaced tensor

    def __getitem__(self, index: object) -> Tensor:
        raise BadType(
            "attention_mask: this model indexes its mask like a tensor, but headwise passes the "
            "mask {mask}; use model.set_attn_implementation('sdpa')",
            mask=self.mask,
        )


@dataclass(frozen=True)
class _Keys:
    """The number of keys of a call, the position of the first key, and the device."""

    count: int
    first: int
    device: torch.device | str


def mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Rule | None = None,
    attention_mask: Tensor | PatternMask | None = None,
    **options: Any,
) -> PatternMask | Tensor | None:
    """Return the mask of one kind of layer; transformers calls this once per forward pass."""
    from transformers import masking_utils

    if isinstance(attention_mask, PatternMask):
        return attention_mask  # `generate` created it before the forward pass
    rule = mask_function or masking_utils.causal_mask_function
    keys = _Keys(kv_length, kv_offset, options.get("device", "cpu"))
    mask = None if _needs_tensor(rule, q_offset, options) else _to_mask(rule, keys)
    if mask is None or isinstance(q_offset, Tensor):
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        options |= {"mask_function": rule, "attention_mask": attention_mask}
        options |= {"batch_size": batch_size, "q_length": q_length, "q_offset": q_offset}
        return masking_utils.sdpa_mask(kv_length=kv_length, kv_offset=kv_offset, **options)
    real = _real_keys(attention_mask, keys)
    mask = mask if real is None else mask & padding(real)
    offset = q_offset - kv_offset
    if q_length and kv_length:
        tile = mask.tile(range(offset, offset + q_length), range(kv_length))
        mask = full() if tile is Tile.FULL else mask  # as for the new token of a decoding step
    return PatternMask(mask, offset, kv_offset)


def _needs_tensor(rule: Rule, q_offset: int | Tensor, options: dict[str, Any]) -> bool:
    """Return whether the caller needs a tensor: for a compiled static cache, or by its flags."""
    if isinstance(q_offset, Tensor) or options.get("use_vmap"):
        return True
    if options.get("allow_is_causal_skip", True) or options.get("allow_is_bidirectional_skip"):
        return False
    return all(kind != "packed" for kind, _ in _parts(rule))  # packed texts disable both flags


def _real_keys(attention_mask: Tensor | None, keys: _Keys) -> Tensor | None:
    """Return a tensor (B, Lk), False on padding; None if no key is padding."""
    if attention_mask is None:
        return None
    real = attention_mask[:, keys.first : keys.first + keys.count].bool()
    real = torch.nn.functional.pad(real, (0, keys.count - real.shape[1]))
    return None if bool(real.all()) else real


def _to_mask(rule: Rule, keys: _Keys) -> Mask | None:
    """Return the rule as a headwise mask, or None if a part of it is unknown."""
    parts = _parts(rule)
    kinds = {kind for kind, _ in parts}
    if "unknown" in kinds or ("remapped" in kinds and "packed" not in kinds):
        return None  # remapped positions restart at 0, and no other part separates the texts
    masks = [_part_to_mask(kind, variables, keys, "causal" in kinds) for kind, variables in parts]
    return intersect([mask for mask in masks if mask != full()])


def _part_to_mask(kind: str, variables: Mapping[str, Any], keys: _Keys, is_causal: bool) -> Mask:
    match kind:
        case "causal":
            return causal()
        case "sliding":
            return window(variables["sliding_window"] - 1, 0 if is_causal else keys.count)
        case "sliding both ways":
            return window(variables["sliding_window"], variables["sliding_window"])
        case "chunked":
            positions = torch.arange(keys.first, keys.first + keys.count, device=keys.device)
            positions = positions - variables["left_padding"].to(keys.device)[:, None]
            return documents(positions.div(variables["chunk_size"], rounding_mode="floor"))
        case "packed":
            return documents(variables["packed_sequence_mask"])
    return full()  # "full" and "remapped"


def _parts(rule: Rule) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the rules whose conjunction is ``rule``, each with its kind and closure variables."""
    from transformers import masking_utils

    kind = _kinds(masking_utils).get(getattr(rule, "__code__", None), "unknown")
    plain = kind in ("unknown", "causal", "full")
    variables = {} if plain else getclosurevars(rule).nonlocals
    if kind == "and":
        return [part for inner in variables["mask_functions"] for part in _parts(inner)]
    if kind == "remapped":  # positions within each text have equal distances, so bands are equal
        inner = _parts(variables["mask_function"])
        bands = all(part in ("causal", "sliding", "full") for part, _ in inner)
        return [("remapped", {}), *inner] if bands else [("unknown", {})]
    return [(kind, variables)]


@cache
def _kinds(library: ModuleType) -> dict[object, str]:
    """Return the kind of each rule that transformers creates, by its code object."""
    one = torch.zeros(1, 1, dtype=torch.long)
    factories: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
        ("and", "and_masks", ()),
        ("sliding", "sliding_window_overlay", (1,)),
        ("sliding both ways", "sliding_window_bidirectional_overlay", (1,)),
        ("chunked", "chunked_overlay", (1, one)),
        ("packed", "packed_sequence_mask_function", (one,)),
        ("remapped", "remap_positions_for_packed_sequence", (None, one)),
    )
    kinds = {getattr(library, name)(*args).__code__: kind for kind, name, args in factories}
    plain = {"causal": "causal_mask_function", "full": "bidirectional_mask_function"}
    return kinds | {getattr(library, name).__code__: kind for kind, name in plain.items()}
