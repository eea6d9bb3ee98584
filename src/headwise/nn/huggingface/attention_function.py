"""The attention function of "headwise" for transformers, and its registration."""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn

from headwise.attention import AUTO, attend
from headwise.errors import BadValue, MissingExtra
from headwise.lang import Text
from headwise.masks import Mask, causal, from_tensor, full
from headwise.masks.patterns.from_tensor import FromTensor
from headwise.nn.huggingface.transformers_masks import PatternMask, mask_function

HONOURED = (
    *("dropout", "is_causal", "output_attentions", "position_bias", "s_aux", "scaling", "softcap"),
)
"""The options of a model's attention that headwise applies."""

IGNORED = (
    *("cache_position", "deterministic", "logits_to_keep", "num_items_in_batch", "position_ids"),
    *("output_hidden_states", "output_router_logits", "sliding_window", "use_cache"),
)
"""The options that the mask already includes, or that do not affect attention."""

SETTINGS = "headwise_settings"  # the attribute of a converted module that holds its `Settings`
CROSS = ("encoder_attn", "crossattention", "cross_attn", "encdecattention")
"""Parts of the names of cross-attention modules in transformers."""


@dataclass(frozen=True, eq=False)
class Settings:
    """The settings of the attention modules in a converted model."""

    before: str  # the earlier attention implementation of the model
    mask: Mask | None = None  # a mask that is combined with the model's own mask
    engine: str = AUTO


def is_cross_attention(name: str, module: nn.Module) -> bool:
    """Return whether a module's name or attribute marks it as cross-attention."""
    named = any(word in name.lower() for word in CROSS)
    return named or bool(getattr(module, "is_cross_attention", False))


def attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: PatternMask | Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend with q (B, H, Lq, D), k and v (B, G, Lk, ·); return (B, Lq, H, Dv) and weights."""
    for name, option in options.items():
        if name not in HONOURED + IGNORED and option is not None and option is not False:
            raise BadValue(
                "{name}: this model's attention uses this option, which headwise does not support; "
                "use model.set_attn_implementation('sdpa')",
                name=name,
            )
    settings = getattr(module, SETTINGS, None) or Settings("")
    mask, offset = mask_and_offset(module, query, key, attention_mask, options.get("is_causal"))
    bias = options.get("position_bias")
    mask = mask if bias is None else mask & FromTensor(bias, "b h q k")
    result = attend(
        query,
        key,
        value,
        mask=mask,
        scale=options.get("scaling"),
        softcap=options.get("softcap"),
        dropout=float(options.get("dropout") or 0.0),
        offset=offset,
        sinks=options.get("s_aux"),
        need=("weights",) if options.get("output_attentions") else (),
        engine=settings.engine,
    )
    return result.output.transpose(1, 2).contiguous(), result.weights


def mask_and_offset(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: PatternMask | Tensor | None,
    is_causal: bool | None,
) -> tuple[Mask, int | None]:
    """Return the mask of one attention module, and the position of the first query.

    If the model passes no mask, a causal module is causal from the first key on, as in
    transformers' "sdpa".
    """
    offset, first = None, 0
    if isinstance(mask, PatternMask):
        own, offset, first = mask.mask, mask.offset, mask.first
    elif mask is not None:
        own = from_tensor(mask, "b h q k")
    else:
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        own = causal() if is_causal and query.shape[2] > 1 else full()
        offset = 0 if own == causal() and key.shape[2] > query.shape[2] else None
    added = (getattr(module, SETTINGS, None) or Settings("")).mask
    if added is None:
        return own, offset
    if first and not added.by_distance:
        raise BadValue(
            "mask: {own} counts positions from the first token, but this model's sliding cache has "
            "dropped the first {first} tokens; use a mask by distance such as hw.window(3, 0), or "
            "transformers.DynamicCache() without a config, which keeps all tokens",
            own=added,
            first=first,
        )
    return added if own == full() else own & added, offset


NAME = "headwise"  # the value of ``attn_implementation=`` and ``model.set_attn_implementation``
INTERFACE = "ALL_ATTENTION_FUNCTIONS"
"""The table in which a model's attention looks up its implementation."""


def register() -> None:
    """Register "headwise" as an attention implementation of transformers.

    Afterwards ``model.set_attn_implementation("headwise")`` and
    ``from_pretrained(..., attn_implementation="headwise")`` work. `headwise.convert` registers it,
    sets it, and can also add a mask or choose an engine. Repeated calls have no effect.

    Raises:
        MissingExtra: if transformers (>= 5) is not installed.

    Example:
        >>> register()
        >>> from transformers import AttentionInterface
        >>> NAME in AttentionInterface().valid_keys()
        True
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise MissingExtra.of("transformers", "inspect") from error
    AttentionInterface.register(NAME, attention_function)
    AttentionMaskInterface.register(NAME, mask_function)


Switched = tuple[list[str], list[tuple[str, Text]]]
"""The names of the switched attention modules; names and reasons of those not switched."""


def pretrained(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the outermost transformers models of a module tree, without importing transformers."""
    library = sys.modules.get("transformers.modeling_utils")
    base = getattr(library, "PreTrainedModel", None)
    outermost: list[str] = []
    for name, module in model.named_modules():
        inside = any(_contains(outer, name) for outer in outermost)
        if base is not None and isinstance(module, base) and not inside:
            outermost.append(name)
            yield name, module


def switch(model: nn.Module, settings: Settings) -> Switched:
    """Switch every attention module of a transformers model to headwise.

    ``settings.mask`` applies to self-attention only; ``settings.before`` is ignored.
    """
    register()
    configs = {id(config): config for _, _, config in _modules(model)}
    names = {key: config._attn_implementation or "eager" for key, config in configs.items()}
    model.set_attn_implementation(NAME)  # type: ignore[operator]
    changed, left = list[str](), list[tuple[str, Text]]()
    for name, module, config in _modules(model):
        old = getattr(module, SETTINGS, None)
        before = old.before if old is not None else names[id(config)]
        uses_interface = config._attn_implementation == NAME and _uses_interface(module)
        if uses_interface:
            changed.append(name)
        elif _is_attention(module):
            reason = Text(
                "{name} computes attention without transformers' attention interface",
                name=type(module).__name__,
            )
            left.append((name, reason))
        if config._attn_implementation == NAME and (
            uses_interface or module is model or hasattr(module, "set_attn_implementation")
        ):
            mask = None if is_cross_attention(name, module) else settings.mask
            setattr(module, SETTINGS, replace(settings, before=before, mask=mask))
    return changed, left


SET_BY_HAND = Text(
    "it was switched without convert(), so its earlier implementation is unknown; use "
    "model.set_attn_implementation('sdpa')"
)


def restore(model: nn.Module) -> Switched:
    """Switch a model back to the attention implementation that it had before `switch`."""
    changed, left = list[str](), list[tuple[str, Text]]()
    modules = list(_modules(model))
    for name, module, config in modules:
        if not _uses_interface(module):
            continue
        if getattr(module, SETTINGS, None) is not None:
            changed.append(name)
        elif config._attn_implementation == NAME:
            left.append((name, SET_BY_HAND))
    for _, module, config in modules:
        settings = module.__dict__.pop(SETTINGS, None)
        if settings is not None and hasattr(module, "set_attn_implementation"):
            config._attn_implementation = settings.before
    return changed, left


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, Any]]:
    """Yield every module once, with its name and the configuration of its model."""
    configs = {"": cast("Any", model.config)}
    for name, module in model.named_modules():
        if hasattr(module, "set_attn_implementation"):
            configs[name] = cast("Any", module.config)
        nearest = max((owner for owner in configs if _contains(owner, name)), key=len)
        yield name, module, configs[nearest]


def _contains(owner: str, name: str) -> bool:
    return not owner or name == owner or name.startswith(f"{owner}.")


def _uses_interface(module: nn.Module) -> bool:
    """Return whether the module's own code looks up its attention in transformers' table."""
    attributes = type(module).__dict__ | {"forward": type(module).forward}
    functions = (inspect.unwrap(f) for f in attributes.values() if inspect.isfunction(f))
    return any(INTERFACE in function.__code__.co_names for function in functions)


def _is_attention(module: nn.Module) -> bool:
    """Return whether a module is called attention but does not use transformers' interface."""
    named = type(module).__name__.endswith("Attention")
    return named and not any(_uses_interface(part) for part in module.modules())
