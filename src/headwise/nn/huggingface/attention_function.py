"""The function that a transformers model's attentions call when they run on headwise."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headwise.attention import AUTO, attend
from headwise.errors import BadValue
from headwise.masks import Mask, causal, from_tensor, full
from headwise.masks.patterns.from_tensor import FromTensor
from headwise.nn.huggingface.soft_cap import Cap, squeezed
from headwise.nn.huggingface.transformers_masks import Described

HONOURED = (
    "dropout",
    "is_causal",
    "output_attentions",
    "position_bias",
    "s_aux",
    "scaling",
    "softcap",
)
"""What a model may ask for beside q, k, v and a mask."""

ELSEWHERE = (
    "cache_position",
    "deterministic",
    "logits_to_keep",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "sliding_window",
    "use_cache",
)
"""What models pass along that the mask says already, or that has nothing to do with attention."""

SETTINGS = "headwise_settings"
"""The attribute of a converted module that holds its `Settings`."""

CROSS = ("encoder_attn", "crossattention", "cross_attn", "encdecattention")
"""Parts of the names that transformers gives to attention from a decoder to its encoder."""


@dataclass(frozen=True, eq=False)
class Settings:
    """How the attentions of a converted model run.

    Attributes:
        before: the implementation that the model ran on.
        mask: a mask that holds beside the model's own, or None.
        engine: which engine runs it.
    """

    before: str
    mask: Mask | None = None
    engine: str = AUTO


def enter(name: str) -> None:
    """Make the function known to transformers under a name."""
    from transformers import AttentionInterface

    AttentionInterface.register(name, _attention)


def is_cross_attention(name: str, module: nn.Module) -> bool:
    """Whether an attention of that name looks from one text at another."""
    named = any(word in name.lower() for word in CROSS)
    return named or bool(getattr(module, "is_cross_attention", False))


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Described | Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """One attention of the model: q (B, H, Lq, D), k and v (B, G, Lk, ·) to (B, Lq, H, Dv)."""
    _refuse_unknown(options)
    settings = getattr(module, SETTINGS, None) or Settings("")
    scale, cap = options.get("scaling"), options.get("softcap")
    mask, offset = mask_and_offset(module, query, key, attention_mask, options.get("is_causal"))
    added, position = options.get("position_bias"), None
    mask = mask if added is None else mask & FromTensor(added, "b h q k")
    if cap is not None:
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        query, mask, position = squeezed(query, key, mask, offset, Cap(cap, factor))
    result = attend(
        query,
        key,
        value,
        mask=mask,
        position=position,
        scale=scale,
        dropout=float(options.get("dropout") or 0.0),
        offset=offset,
        sinks=options.get("s_aux"),
        need=("weights",) if options.get("output_attentions") else (),
        engine=settings.engine,
    )
    return result.output.transpose(1, 2).contiguous(), result.weights


def _refuse_unknown(options: dict[str, Any]) -> None:
    for name, asked in options.items():
        if name in HONOURED or name in ELSEWHERE or asked is None or asked is False:
            continue
        raise BadValue(
            "{name}: this model's attention asks for it, and headwise does not know what "
            "it means; use model.set_attn_implementation('sdpa')",
            name=name,
        )


def mask_and_offset(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    given: Described | Tensor | None,
    is_causal: bool | None,
) -> tuple[Mask, int | None]:
    """Who sees whom in one attention of the model, and where the first query stands."""
    mask, offset = _mask(module, query, key, given, is_causal)
    settings = getattr(module, SETTINGS, None) or Settings("")
    return _with_own(mask, settings.mask, given), offset


def _mask(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    given: Described | Tensor | None,
    is_causal: bool | None,
) -> tuple[Mask, int | None]:
    """The model's mask, and where the first query stands.

    Without one it is causal from the first key on where the module says so, as transformers' "sdpa"
    has it.
    """
    if isinstance(given, Described):
        return given.mask, given.offset
    if given is not None:
        return from_tensor(given, "b h q k"), None
    wanted = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if not wanted or query.shape[2] == 1:
        return full(), None
    return causal(), 0 if key.shape[2] > query.shape[2] else None


def _with_own(mask: Mask, own: Mask | None, given: Described | Tensor | None) -> Mask:
    """The model's mask and the one that it was converted with."""
    if own is None:
        return mask
    if isinstance(given, Described) and given.first and not own.by_distance:
        raise BadValue(
            "mask: {own} counts from the first token, and this model's sliding cache no "
            "longer holds the first {first}; use a mask by distance such as hw.window(3, "
            "0), or transformers.DynamicCache() without a config, which keeps all",
            own=own,
            first=given.first,
        )
    return own if mask == full() else mask & own
