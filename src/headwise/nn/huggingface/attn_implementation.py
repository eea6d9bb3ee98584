"""The attention implementation "headwise" of transformers: register it, switch a model to it."""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import nn

from headwise.errors import MissingExtra
from headwise.lang import Text
from headwise.nn.huggingface.attention_function import (
    SETTINGS,
    Settings,
    attention_function,
    is_cross_attention,
)
from headwise.nn.huggingface.transformers_masks import mask_function

NAME = "headwise"
"""The value of ``attn_implementation=`` and ``model.set_attn_implementation``."""

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
"""The table in which a model's attention looks up its implementation."""


def register() -> None:
    """Make "headwise" an attention implementation of transformers; may be called again.

    Afterwards ``model.set_attn_implementation("headwise")`` and
    ``from_pretrained(..., attn_implementation="headwise")`` work. `headwise.convert` does both, and
    can add a mask or choose an engine.

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


@dataclass(frozen=True)
class Switched:
    """The attentions of a model that were switched or not.

    Attributes:
        changed: names of the attentions that were switched.
        left: names of the attentions that were not, each with the reason.
    """

    changed: tuple[str, ...]
    left: tuple[tuple[str, Text], ...]


def pretrained(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The outermost transformers models in a module tree; transformers is not imported."""
    library = sys.modules.get("transformers.modeling_utils")
    base = getattr(library, "PreTrainedModel", None)
    outermost: list[str] = []
    for name, module in model.named_modules():
        inside = any(_contains(outer, name) for outer in outermost)
        if base is not None and isinstance(module, base) and not inside:
            outermost.append(name)
            yield name, module


def switch(model: nn.Module, settings: Settings) -> Switched:
    """Run every attention of a transformers model on headwise.

    Args:
        model: a transformers model.
        settings: the engine, and the mask that holds together with the model's own, in
            self-attention only. ``before`` is ignored.
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
            left.append((name, _not_in_interface(module)))
        if config._attn_implementation == NAME and (
            uses_interface or module is model or hasattr(module, "set_attn_implementation")
        ):
            mask = None if is_cross_attention(name, module) else settings.mask
            setattr(module, SETTINGS, replace(settings, before=before, mask=mask))
    return Switched(tuple(changed), tuple(left))


def restore(model: nn.Module) -> Switched:
    """Run a model on the implementation that it had before `switch`."""
    changed, left = list[str](), list[tuple[str, Text]]()
    modules = list(_modules(model))
    for name, module, config in modules:
        if not _uses_interface(module):
            continue
        if getattr(module, SETTINGS, None) is not None:
            changed.append(name)
        elif config._attn_implementation == NAME:
            left.append((name, _SET_BY_HAND))
    for _, module, config in modules:
        settings = module.__dict__.pop(SETTINGS, None)
        if settings is not None and hasattr(module, "set_attn_implementation"):
            config._attn_implementation = settings.before
    return Switched(tuple(changed), tuple(left))


_SET_BY_HAND = Text(
    "it was set by hand, so that its earlier implementation is not known; use "
    "model.set_attn_implementation('sdpa')"
)


def _not_in_interface(module: nn.Module) -> Text:
    name = type(module).__name__
    return Text(
        "{name} computes attention itself, and not through transformers' interface", name=name
    )


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, Any]]:
    """Every module once, with its name and the configuration of the model it is part of."""
    configs = {"": cast("Any", model.config)}
    for name, module in model.named_modules():
        if hasattr(module, "set_attn_implementation"):
            configs[name] = cast("Any", module.config)
        nearest = max((owner for owner in configs if _contains(owner, name)), key=len)
        yield name, module, configs[nearest]


def _contains(owner: str, name: str) -> bool:
    return not owner or name == owner or name.startswith(f"{owner}.")


def _uses_interface(module: nn.Module) -> bool:
    """Whether the module's own code looks up its attention in transformers' table."""
    attributes = type(module).__dict__ | {"forward": type(module).forward}
    functions = (inspect.unwrap(f) for f in attributes.values() if inspect.isfunction(f))
    return any(INTERFACE in function.__code__.co_names for function in functions)


def _is_attention(module: nn.Module) -> bool:
    """Whether its class is an attention by name, and no part of it uses the interface."""
    named = type(module).__name__.endswith("Attention")
    return named and not any(_uses_interface(part) for part in module.modules())
