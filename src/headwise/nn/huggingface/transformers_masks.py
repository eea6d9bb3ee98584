"""What a transformers model says about its mask, as a headwise mask and not as a matrix.

transformers gives a rule ``(b, h, q, k) -> bool`` that was put together from parts of
`transformers.masking_utils`. The parts that are known here become masks whose cost follows the
pattern; any other rule is written out as booleans, as its "sdpa" does, with the same answer.
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

Rule = Callable[..., Any]
"""Their rule: numbers of sample, head, query and key to True where the query may attend."""


@dataclass(frozen=True, eq=False)
class Described:
    """The mask that a model hands to its attentions instead of a (B, 1, Lq, Lk) tensor.

    Attributes:
        mask: who may attend to whom; key number 0 is the first key held.
        offset: where the first query stands among the keys held.
        first: the number of the first key held, of all that came; not 0 where a cache slides.
        ndim: the axes of the tensor that it stands for.
    """

    mask: Mask
    offset: int
    first: int
    ndim: int = 4

    def __getitem__(self, index: object) -> Tensor:
        raise BadType(
            "attention_mask: this model changes its mask as a tensor, and headwise gives "
            "it {mask}; use model.set_attn_implementation('sdpa')",
            mask=self.mask,
        )


@dataclass(frozen=True)
class _Keys:
    """The keys that a rule is read for: how many, the number of the first, and where."""

    count: int
    first: int
    device: torch.device | str


def enter(name: str) -> None:
    """Make the masks of this file known to transformers under a name."""
    from transformers import AttentionMaskInterface

    AttentionMaskInterface.register(name, _described)


def _described(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Rule | None = None,
    attention_mask: Tensor | Described | None = None,
    **options: Any,
) -> Described | Tensor | None:
    """What transformers asks an implementation for, once a pass and kind of layer."""
    from transformers import masking_utils

    if isinstance(attention_mask, Described):
        return attention_mask  # `generate` made it before the pass
    rule = mask_function or masking_utils.causal_mask_function
    keys = _Keys(kv_length, kv_offset, options.get("device", "cpu"))
    mask = None if _as_tensor(rule, q_offset, options) else _read(rule, keys)
    if mask is None or isinstance(q_offset, Tensor):
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        options |= {"mask_function": rule, "attention_mask": attention_mask}
        options |= {"batch_size": batch_size, "q_length": q_length, "q_offset": q_offset}
        return masking_utils.sdpa_mask(kv_length=kv_length, kv_offset=kv_offset, **options)
    real = _real(attention_mask, keys)
    mask = mask if real is None else mask & padding(real)
    offset = q_offset - kv_offset
    return Described(_simplest(mask, offset, q_length, kv_length), offset, kv_offset)


def _simplest(mask: Mask, offset: int, queries: int, keys: int) -> Mask:
    """The full mask where nothing is hidden, as from the one new token of a step."""
    if not queries or not keys:
        return mask
    tile = mask.tile(range(offset, offset + queries), range(keys))
    return full() if tile is Tile.FULL else mask


def _as_tensor(rule: Rule, q_offset: int | Tensor, options: dict[str, Any]) -> bool:
    """Whether the caller needs a tensor: a compiled static cache, or who says so by the flags."""
    skips = (options.get("allow_is_causal_skip", True), options.get("allow_is_bidirectional_skip"))
    return (
        isinstance(q_offset, Tensor)
        or bool(options.get("use_vmap"))
        or not (any(skips) or _is_packed(rule))
    )


def _is_packed(rule: Rule) -> bool:
    """Several texts in one row: the flags are off then, whatever the caller wants."""
    return any(kind == "packed" for kind, _ in _parts(rule))


def _real(attention_mask: Tensor | None, keys: _Keys) -> Tensor | None:
    """(B, Lk), False on padding; None where every key is real."""
    if attention_mask is None:
        return None
    known = attention_mask[:, keys.first : keys.first + keys.count].bool()
    missing = keys.count - known.shape[1]
    real = torch.nn.functional.pad(known, (0, missing))
    return None if bool(real.all()) else real


def _read(rule: Rule, keys: _Keys) -> Mask | None:
    """The rule as a mask, or None where a part is not known."""
    parts = _parts(rule)
    kinds = {kind for kind, _ in parts}
    if "remapped" in kinds and "packed" not in kinds:
        return None  # positions start again, and nothing else tells the texts apart
    whole: Mask = full()
    for kind, held in parts:
        mask = _part(kind, held, keys, "causal" in kinds)
        if mask is None:
            return None
        whole = mask if whole == full() else whole if mask == full() else whole & mask
    return whole


def _part(kind: str, held: Mapping[str, Any], keys: _Keys, is_causal: bool) -> Mask | None:
    if kind in ("full", "remapped"):
        return full()
    if kind == "causal":
        return causal()
    if kind == "sliding":
        return window(held["sliding_window"] - 1, 0 if is_causal else keys.count)
    if kind == "sliding both ways":
        return window(held["sliding_window"], held["sliding_window"])
    if kind == "chunked":
        places = torch.arange(keys.first, keys.first + keys.count, device=keys.device)
        after = places - held["left_padding"].to(keys.device)[:, None]
        return documents(after.div(held["chunk_size"], rounding_mode="floor"))
    if kind == "packed":
        return documents(held["packed_sequence_mask"])
    return None


def _parts(rule: Rule) -> list[tuple[str, Mapping[str, Any]]]:
    """The rules that must all hold, each with its kind and what it holds."""
    from transformers import masking_utils

    kind = _kinds(masking_utils).get(getattr(rule, "__code__", None), "unknown")
    held = getclosurevars(rule).nonlocals if kind not in ("unknown", "causal", "full") else {}
    if kind == "and":
        return [part for each in held["mask_functions"] for part in _parts(each)]
    if kind == "remapped":  # positions within each text: distances stay, so a band stays
        inner = _parts(held["mask_function"])
        bands = all(each in ("causal", "sliding", "full") for each, _ in inner)
        return [("remapped", {}), *inner] if bands else [("unknown", {})]
    return [(kind, held)]


@cache
def _kinds(theirs: ModuleType) -> dict[object, str]:
    """The code of each rule that transformers makes, and what it is called here."""
    one = torch.zeros(1, 1, dtype=torch.long)
    makers: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
        ("and", "and_masks", ()),
        ("sliding", "sliding_window_overlay", (1,)),
        ("sliding both ways", "sliding_window_bidirectional_overlay", (1,)),
        ("chunked", "chunked_overlay", (1, one)),
        ("packed", "packed_sequence_mask_function", (one,)),
        ("remapped", "remap_positions_for_packed_sequence", (None, one)),
    )
    found = {getattr(theirs, name)(*given).__code__: kind for kind, name, given in makers}
    plain = {"causal": "causal_mask_function", "full": "bidirectional_mask_function"}
    return found | {getattr(theirs, name).__code__: kind for kind, name in plain.items()}
