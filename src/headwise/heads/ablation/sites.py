"""Find the attention modules of a model and their heads without running the model."""

import inspect
from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import nn

from headwise.errors import BadType, BadValue
from headwise.heads.names import Head, Layer, not_in_model, parse_heads
from headwise.nn.huggingface.attention_function import is_cross_attention
from headwise.nn.projections import (
    ARCHITECTURES,
    Architecture,
    architecture_of,
    attribute,
    features,
)


@dataclass(frozen=True, eq=False)
class Site:
    """An attention module of a model.

    Attributes:
        name: the name of the module in ``named_modules()``.
        module: the attention module.
        layers: the layers that call the module, in order; several layers may share it.
        heads: the number of heads, H.
        size: the dimension of the output of a head, Dv.
        architecture: the layout of the projections; None for `nn.MultiheadAttention`, which does
            not call its projections as modules.
    """

    name: str
    module: nn.Module
    layers: tuple[Layer, ...]
    heads: int
    size: int
    architecture: Architecture | None

    @property
    def out(self) -> nn.Module:
        """The output projection."""
        path = "out_proj" if self.architecture is None else self.architecture.out
        return self.module.get_submodule(path)


def sites(model: nn.Module) -> tuple[Site, ...]:
    """Return the attention modules of a model, from the lowest layer.

    As in `headwise.heads.capture`, layers are numbered in the order of ``named_modules()``,
    separately for encoder, decoder and cross-attention.

    Raises:
        BadType: if ``model`` is not a module.
        BadValue: if ``model`` has no attention module of a supported architecture.

    Example:
        >>> encoder = nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> [(site.name, str(site.layers[0]), site.heads) for site in sites(encoder)]
        [('self_attn', 'L0', 2)]
    """
    if not isinstance(model, nn.Module):
        raise BadType(
            "model: expected a torch.nn.Module, got {model_type}", model_type=type(model).__name__
        )
    modules: dict[int, tuple[str, nn.Module, list[Layer]]] = {}
    counts: Counter[str] = Counter()
    attentions = _attentions(model)
    two_stacks = _has_two_stacks(model, [name for name, _ in attentions])
    for name, module in attentions:
        part = _part(name, module, two_stacks, model)
        layers = modules.setdefault(id(module), (name, module, []))[2]
        layers.append(Layer(part, counts[part]))
        counts[part] += 1
    if not modules:
        raise _unknown(type(model).__name__)
    return tuple(_site(*entry, model) for entry in modules.values())


def parsed(heads: object) -> tuple[Head, ...]:
    """Return the heads of a user's argument, in order and without duplicates; at least one."""
    if isinstance(heads, str):
        return parse_heads(heads)
    items = (heads,) if isinstance(heads, Head) else heads
    if not isinstance(items, list | tuple | set | frozenset):
        raise BadType(
            "heads: expected names such as 'L0H2,L1H8' or a list of heads, got {heads_type}",
            heads_type=type(heads).__name__,
        )
    parsed_heads = [head if isinstance(head, Head) else Head.parse(str(head)) for head in items]
    if not parsed_heads:
        raise BadValue("heads: expected at least one head, got none; pass, e.g., 'L0H2,L1H8'")
    ordered = parsed_heads if isinstance(items, list | tuple) else sorted(parsed_heads)
    return tuple(dict.fromkeys(ordered))


def every_head(attentions: tuple[Site, ...]) -> tuple[Head, ...]:
    """Return every head of a model, ordered by part and layer."""
    layers = [(layer, site.heads) for site in attentions for layer in site.layers]
    return tuple(sorted(Head(layer, number) for layer, heads in layers for number in range(heads)))


def check_exist(heads: tuple[Head, ...], attentions: tuple[Site, ...]) -> None:
    """Raise `BadValue` unless all ``heads`` exist; the message lists the heads of the model."""
    counts = {layer: site.heads for site in attentions for layer in site.layers}
    for head in heads:
        if head.number >= counts.get(head.layer, 0):
            raise not_in_model(head, counts)


def _attentions(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return every attention module under each of its names; skip modules inside an attention."""
    modules = list[tuple[str, nn.Module]]()
    for name, module in model.named_modules(remove_duplicate=False):
        if any(name.startswith(f"{outer}.") or not outer for outer, _ in modules):
            continue
        if isinstance(module, nn.MultiheadAttention) or architecture_of(module) is not None:
            modules.append((name, module))
        elif not isinstance(module, nn.ModuleList) and _attends(module):
            raise _unknown(f"{name}, a {type(module).__name__},")
    return modules


def _attends(module: nn.Module) -> bool:
    """Return whether the code of a transformers module computes attention."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _unknown(what: str) -> BadValue:
    names = ", ".join(architecture.name for architecture in ARCHITECTURES)
    return BadValue(
        "model: {what} has no attention with a supported layout of projections; supported are "
        "nn.MultiheadAttention, headwise.MultiheadAttention and the layouts of {names}",
        what=what,
        names=names,
    )


def _has_two_stacks(model: nn.Module, names: list[str]) -> bool:
    stated = getattr(getattr(model, "config", None), "is_encoder_decoder", None)
    if stated is not None:
        return bool(stated)
    words = {word for name in names for word in name.lower().split(".")}
    return {"encoder", "decoder"} <= words


def _part(name: str, module: nn.Module, two_stacks: bool, model: nn.Module) -> str:
    words = name.lower().split(".")
    beside = hasattr(model.get_submodule(name.rpartition(".")[0]), "self_attn")
    torch_cross = words[-1] == "multihead_attn" and beside  # in nn.TransformerDecoderLayer
    anarcii_cross = {"decoder", "encoder_attention"} <= set(words)
    if is_cross_attention(name, module) or torch_cross or anarcii_cross:
        return "cross"
    if not two_stacks:
        return ""
    return "encoder" if "encoder" in words else "decoder"


def _site(name: str, module: nn.Module, layers: list[Layer], model: nn.Module) -> Site:
    if isinstance(module, nn.MultiheadAttention):
        return Site(name, module, tuple(layers), module.num_heads, module.head_dim, None)
    architecture = architecture_of(module)
    assert architecture is not None  # noqa: S101 - checked in `_attentions`
    size = int(str(attribute(module, architecture.size)))
    width = features(attribute(module, architecture.out))
    assert width is not None  # noqa: S101 - true of every architecture
    if architecture.name == "ALBERT":
        layers = _albert_layers(name, model.config) or layers
    return Site(name, module, tuple(layers), width[0] // size, size, architecture)


def _albert_layers(name: str, config: Any) -> list[Layer]:
    """Return the layers that share an attention module of ALBERT; none if its name differs."""
    words = name.split(".")
    try:
        group = int(words[words.index("albert_layer_groups") + 1])
        inner = int(words[words.index("albert_layers") + 1])
    except (ValueError, IndexError):
        return []
    total = config.num_hidden_layers
    turns = [n for n in range(total) if int(n / (total / config.num_hidden_groups)) == group]
    return [Layer("", turn * config.inner_group_num + inner) for turn in turns]
