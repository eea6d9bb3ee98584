"""A transformers model set to run on headwise, and back to what it ran on."""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import nn

from headwise.errors import MissingExtra
from headwise.lang import Text
from headwise.nn.huggingface import attention_function, transformers_masks
from headwise.nn.huggingface.attention_function import SETTINGS, Settings, is_cross_attention

NAME = "headwise"
"""What ``model.set_attn_implementation`` and ``attn_implementation=`` are given."""


def register() -> None:
    """Make "headwise" an attention implementation of transformers; again changes nothing.

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
        attention_function.enter(NAME)
        transformers_masks.enter(NAME)
    except ImportError as error:
        raise MissingExtra.of("transformers", "inspect") from error


INTERFACE = "ALL_ATTENTION_FUNCTIONS"
"""The table in which a model's attention looks its implementation up."""


@dataclass(frozen=True)
class Exchange:
    """What was done to one model.

    Attributes:
        changed: names of the attentions that run on headwise now, or no longer.
        left: names of attentions that stayed as they are, each with the reason.
    """

    changed: tuple[str, ...]
    left: tuple[tuple[str, Text], ...]


def pretrained(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The transformers models in a module tree, outermost only; transformers is not imported."""
    library = sys.modules.get("transformers.modeling_utils")
    kind = getattr(library, "PreTrainedModel", None)
    outer: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{each}.") or not each for each in outer)
        if kind is not None and isinstance(module, kind) and not inside:
            outer.append(name)
            yield name, module


def exchange(model: nn.Module, settings: Settings) -> Exchange:
    """Let every attention of a transformers model run on headwise.

    Args:
        model: a transformers model.
        settings: the mask that holds beside the model's own in its attentions to the same text
            (attention to another text has no distances), and the engine. ``before`` is not read.
    """
    register()
    configs = _configs(model)
    names = {key: config._attn_implementation or "eager" for key, config in configs.items()}
    model.set_attn_implementation(NAME)  # type: ignore[operator]
    changed, left = list[str](), list[tuple[str, Text]]()
    for name, module, config in _owned(model):
        old = getattr(module, SETTINGS, None)
        first = old.before if old is not None else names[id(config)]
        if config._attn_implementation != NAME:
            if _is_attention(module):
                left.append((name, _itself(module)))
            continue
        looks_up = _looks_up(module)
        if looks_up or module is model or hasattr(module, "set_attn_implementation"):
            own = None if is_cross_attention(name, module) else settings.mask
            setattr(module, SETTINGS, replace(settings, before=first, mask=own))
        if looks_up:
            changed.append(name)
        elif _is_attention(module):
            left.append((name, _itself(module)))
    return Exchange(tuple(changed), tuple(left))


def restore(model: nn.Module) -> Exchange:
    """Let a model run on what it ran on before `exchange`."""
    changed, left = list[str](), list[tuple[str, Text]]()
    owned = list(_owned(model))
    for name, module, config in owned:
        settings = getattr(module, SETTINGS, None)
        if settings is not None and _looks_up(module):
            changed.append(name)
        elif config._attn_implementation == NAME and _looks_up(module):
            left.append((name, _BY_HAND))
    for _, module, config in owned:
        settings = module.__dict__.pop(SETTINGS, None)
        if settings is not None and hasattr(module, "set_attn_implementation"):
            config._attn_implementation = settings.before
    return Exchange(tuple(changed), tuple(left))


_BY_HAND = Text(
    "it was set by hand, so what it ran on before is not known; use "
    "model.set_attn_implementation('sdpa')"
)


def _itself(module: nn.Module) -> Text:
    name = type(module).__name__
    return Text(
        "{name} computes attention itself, and not through transformers' interface", name=name
    )


def _owned(model: nn.Module) -> Iterator[tuple[str, nn.Module, Any]]:
    """Every module once, with its name and the configuration of the model it is part of."""
    owners = {"": cast("Any", model.config)}
    for name, module in model.named_modules():
        if hasattr(module, "set_attn_implementation"):
            owners[name] = cast("Any", module.config)
        nearest = max((each for each in owners if _holds(each, name)), key=len)
        yield name, module, owners[nearest]


def _holds(owner: str, name: str) -> bool:
    return not owner or name == owner or name.startswith(f"{owner}.")


def _configs(model: nn.Module) -> dict[int, Any]:
    """The configurations of the model and of those inside it, outermost first."""
    return {id(config): config for _, _, config in _owned(model)}


def _looks_up(module: nn.Module) -> bool:
    """Whether the module's own code looks its attention up in transformers' table."""
    methods = (inspect.unwrap(each) for each in _functions(type(module)))
    return any(INTERFACE in method.__code__.co_names for method in methods)


def _functions(kind: type) -> Iterator[Any]:
    for each in (kind.__dict__ | {"forward": kind.forward}).values():  # type: ignore[attr-defined]
        if inspect.isfunction(each):
            yield each


def _is_attention(module: nn.Module) -> bool:
    """Whether it is an attention by its name, and no part of it looks one up."""
    named = type(module).__name__.endswith("Attention")
    return named and not any(_looks_up(part) for part in module.modules())
