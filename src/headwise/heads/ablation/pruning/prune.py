"""Prune heads from the weights of a model."""

import copy
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from headwise.errors import BadValue
from headwise.heads.ablation.pruning.eligibility import reason
from headwise.heads.ablation.pruning.kept_heads import (
    COUNTED,
    SHARES,
    Kept,
    inner,
    kept_of,
    key_heads,
)
from headwise.heads.ablation.pruning.shrink import separate_position_biases, shrink
from headwise.heads.ablation.sites import Site, check_exist, parsed, sites
from headwise.heads.names import Head, Layer
from headwise.lang import Text
from headwise.nn import convert


def update_config(model: nn.Module) -> bool:
    """Write the new head counts into a model's configuration, if it can represent them.

    It can if a model built from it has the same parameter shapes and head counts. Otherwise it is
    unchanged: a configuration has one head count for all layers, and in many architectures the head
    dimension follows from it.

    Args:
        model: a transformers model with fewer heads.

    Returns:
        Whether the configuration was updated.
    """
    config: Any = getattr(model, "config", None)
    attentions = sites(model)
    if config is None or len({(site.heads, site.size) for site in attentions}) > 1:
        return False
    updated = copy.deepcopy(config)
    _set_head_counts(updated, attentions[0])
    try:
        with torch.device("meta"):
            rebuilt = type(model)(updated)
    except (ValueError, TypeError, AttributeError, RuntimeError, AssertionError):
        return False  # such a model cannot be built
    if _shapes(rebuilt) != _shapes(model) or _head_counts(rebuilt) != _head_counts(model):
        return False
    for configuration in _configurations(model, type(config)):
        _set_head_counts(configuration, attentions[0])
    return True


def _set_head_counts(config: Any, site: Site) -> None:
    """Set the head counts of one attention module under their names in transformers."""
    config.num_attention_heads = site.heads
    if getattr(config, "num_key_value_heads", None) is not None:
        config.num_key_value_heads = site.heads // getattr(inner(site), SHARES[0], 1)
    config.head_dim = site.size


def _configurations(model: nn.Module, kind: type) -> list[Any]:
    """Every configuration in the model: each stack of T5 has a copy."""
    found = {
        id(configuration): configuration
        for m in model.modules()
        if type(configuration := getattr(m, "config", None)) is kind
    }
    return list(found.values())


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


def _head_counts(model: nn.Module) -> list[list[tuple[str, object]]]:
    """The head counts of each attention module."""
    return [
        [(name, value) for name in COUNTED if (value := inner(site).__dict__.get(name)) is not None]
        for site in sites(model)
    ]


def prune(model: nn.Module, heads: str | Head | Collection[Head | str]) -> nn.Module:
    """A copy of a model without some heads; its outputs equal those under ``ablate(..., "zero")``.

        q_proj  H·D rows    ->  rows of the kept heads
        k, v    G·D rows    ->  rows of the key/value heads of kept query heads
        out     H·D columns ->  columns of the kept heads

    A key/value head is removed with the last query head of its group. If groups keep different
    numbers of query heads, their keys and values are repeated for attention, but stored and
    computed once. If all heads of a layer are pruned, one is kept with output 0, so that the layer
    still adds its bias. PyTorch's attention becomes a `headwise.MultiheadAttention`, whose heads
    need not fill embed_dim.

    A transformers configuration is updated if it can represent the result: if all layers keep as
    many heads, and the head dimension does not follow from their number. Otherwise save the model
    by its ``state_dict`` and load it into ``hw.prune(fresh, heads)``.

    Args:
        model: the model; unchanged.
        heads: the heads to prune, such as "L0H2,L1H8", counted from 0.

    Raises:
        BadType, BadValue: if a head does not exist, or an attention module cannot be pruned; the
            message says why.

    Source: Michel et al. 2019, section 4; Voita et al. 2019, section 6.

    Example:
        >>> import headwise as hw
        >>> encoder = nn.TransformerEncoderLayer(8, 4, batch_first=True).eval()
        >>> small = hw.prune(encoder, "L0H1,L0H3")
        >>> small.self_attn.num_heads, tuple(small.self_attn.out_proj.weight.shape)
        (2, (8, 4))
    """
    pruned = parsed(heads)
    check_exist(pruned, sites(model))
    smaller = _with_headwise_attention(copy.deepcopy(model), {head.layer for head in pruned})
    attentions = sites(smaller)
    numbers = {site.name: _removed_heads(site, pruned) for site in attentions}
    affected = tuple(site for site in attentions if numbers[site.name])
    owners = Counter(id(p) for m in smaller.modules() for p in m.parameters(recurse=False))
    for site in affected:
        obstacle = reason(site, owners)
        if obstacle is not None:
            raise _refused(site.name, obstacle)
    kept = {
        site.name: kept_of(site.heads, key_heads(site), numbers[site.name]) for site in affected
    }
    _cut(attentions, kept)
    update_config(smaller)
    return smaller


def _cut(attentions: tuple[Site, ...], kept: Mapping[str, Kept]) -> None:
    separate_position_biases(attentions, kept)
    for site in attentions:
        if site.name in kept:
            shrink(site, kept[site.name])


def _with_headwise_attention(model: nn.Module, layers: Collection[Layer]) -> nn.Module:
    """The model with headwise's attention in place of PyTorch's in the pruned layers."""
    for site in sites(model):
        if not isinstance(site.module, nn.MultiheadAttention) or not set(site.layers) & set(layers):
            continue
        done = convert(site.module)
        if done.left:
            raise _refused(site.name, done.left[0][1])
        model = _replace_module(model, site.module, done.model)
    return model


def _replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """The model with every occurrence of a module replaced."""
    if model is old:
        return new
    for owner in list(model.modules()):
        for name, part in list(owner.named_children()):
            if part is old:
                setattr(owner, name, new)
    return model


def _removed_heads(site: Site, pruned: tuple[Head, ...]) -> set[int]:
    """The pruned heads of an attention module; shared modules need the same in each layer."""
    by_layer = {
        layer: frozenset(head.number for head in pruned if head.layer == layer)
        for layer in site.layers
    }
    if len(set(by_layer.values())) > 1:
        layers = ", ".join(map(str, site.layers))
        raise BadValue(
            "heads: {layers} are one attention with the same weights, and each loses "
            "other heads; name the same heads in all of them, or take them out with "
            "hw.ablate",
            layers=layers,
        )
    return set(by_layer[site.layers[0]])


def _refused(name: str, obstacle: Text) -> BadValue:
    place = name or "(itself)"
    return BadValue(
        "model: heads of {place} cannot be cut out: {why}; take them out with hw.ablate",
        place=place,
        why=obstacle,
    )
