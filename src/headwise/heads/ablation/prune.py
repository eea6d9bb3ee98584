"""`prune`, which copies a model without some of its heads."""

import copy
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from headwise.errors import BadValue
from headwise.heads.ablation.shrink import (
    COUNTED,
    SHARES,
    Shared,
    counts_elsewhere,
    inner,
    kept_of,
    key_heads,
    separate_position_biases,
    shrink,
)
from headwise.heads.ablation.sites import Site, check_exist, parsed, sites
from headwise.heads.names import Head, Layer
from headwise.lang import Text
from headwise.masks import Mask
from headwise.nn import MultiheadAttention, convert
from headwise.nn.projections import attribute
from headwise.positions import POSITIONS, Position
from headwise.shapes import AttentionShape

CPU = torch.device("cpu")
CONV1D = "Conv1D"  # the projection class of GPT-2 in transformers

HEAD_NORMS = ("q_norm", "k_norm", "query_norm", "key_norm", "q_layernorm", "k_layernorm")
"""Normalisations of queries and keys; they stay unchanged if they have the size of one head."""

BY_HEAD = ("sinks", "relative_attention_bias.weight", "bias_k", "bias_v")
"""Parameters with entries for each head, which are pruned with the heads."""


def reason(site: Site, owners: Counter[int]) -> Text | None:
    """Return why heads cannot be pruned, or None; ``owners`` counts the modules per parameter."""
    architecture = site.architecture
    assert architecture is not None  # noqa: S101 - PyTorch's own is converted first
    fused = [architecture.fused] if architecture.fused else []
    paths = [*architecture.projections, *fused, architecture.out]
    for path in paths:
        projection = attribute(site.module, path)
        kind = type(projection).__name__
        if type(projection) not in (nn.Linear, Shared) and kind != CONV1D:
            return Text("{path} is a {kind}, not a plain nn.Linear", path=path, kind=kind)
    if any(owners[id(parameter)] > 1 for parameter in site.module.parameters()):
        return Text("it shares a parameter with another module")
    if isinstance(site.module, MultiheadAttention):
        ours = _headwise_part(site.module)
        if ours is not None:
            return ours
    return counts_elsewhere(site) or _unknown_part(site, tuple(paths))


def _unknown_part(site: Site, paths: tuple[str, ...]) -> Text | None:
    """Return why a parameter or buffer cannot be divided among the heads, or None."""
    modules = (*paths, *site.architecture.beside, "global_proj", "position")  # type: ignore[union-attr]
    prefixes = tuple(f"{path}." for path in modules)
    for name, tensor in [*site.module.named_parameters(), *site.module.named_buffers()]:
        norm_of_head = name.split(".")[0] in HEAD_NORMS and tensor.numel() == site.size
        if not (norm_of_head or name.startswith(prefixes) or name in BY_HEAD):
            return Text("{name} cannot be divided among the heads", name=name)
    return None


def _headwise_part(module: MultiheadAttention) -> Text | None:
    """Return why a headwise module has a part that cannot be pruned by heads, or None."""
    if module.mask is not None and not _same_for_all_heads(module.mask):
        return Text("its mask {mask} may differ between heads", mask=module.mask)
    position: Position | None = module.position
    headless = isinstance(position, POSITIONS) and "H" not in position.expected_sizes()
    if position is not None and not headless:
        name = type(position).__name__
        return Text("its {name} has different values for each head", name=name)
    for name in ("gate", "logit_scale"):
        if getattr(module, name, None) is not None:
            return Text("its {name} depends on the number of heads", name=name)
    return None


def _same_for_all_heads(mask: Mask) -> bool:
    """Return whether a mask is certainly the same for all heads: its rule has no head dimension."""
    sizes = mask.required_sizes()
    if mask.content_dependent or sizes.get("H", 1) > 1:
        return False
    keys = sizes.get("Lk", 1)
    shape = AttentionShape(sizes.get("B", 1), 2, sizes.get("Lq", keys), keys, 0, CPU)
    try:
        resolved = mask.resolve(shape)
    except BadValue:
        return False
    values = (resolved.rule(*shape.indices()), resolved.bias(*shape.indices()))
    return all(value is None or value.dim() < 3 or value.shape[-3] == 1 for value in values)


def update_config(model: nn.Module) -> bool:
    """Write the new head counts to a model's configuration; return False if that is impossible.

    It is possible if a model built from the configuration has the same parameter shapes and head
    counts. A configuration has one head count for all layers; many architectures also compute the
    head dimension from it.
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
        return False  # no model can be built from the configuration
    if _shapes(rebuilt) != _shapes(model) or _head_counts(rebuilt) != _head_counts(model):
        return False
    for module in model.modules():  # each stack of T5 has a copy of the configuration
        own: Any = getattr(module, "config", None)
        if type(own) is type(config):
            _set_head_counts(own, attentions[0])
    return True


def _set_head_counts(config: Any, site: Site) -> None:
    config.num_attention_heads = site.heads
    if getattr(config, "num_key_value_heads", None) is not None:
        config.num_key_value_heads = site.heads // getattr(inner(site), SHARES[0], 1)
    config.head_dim = site.size


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


def _head_counts(model: nn.Module) -> list[list[object]]:
    return [[inner(site).__dict__.get(name) for name in COUNTED] for site in sites(model)]


def prune(model: nn.Module, heads: str | Head | Collection[Head | str]) -> nn.Module:
    """Return a copy of a model without some heads, with the outputs of ``ablate(..., "zero")``.

        q_proj  H·D rows    ->  rows of the kept heads
        k, v    G·D rows    ->  rows of the key/value heads of kept query heads
        out     H·D columns ->  columns of the kept heads

    A key/value head is removed with the last query head of its group. If groups keep different
    numbers of query heads, their keys and values are stored and computed once and repeated for
    attention. If all heads of a layer are pruned, one head stays with output 0, so the layer still
    adds its bias. `nn.MultiheadAttention` is replaced by `headwise.MultiheadAttention`, where
    H·D may be smaller than embed_dim.

    A transformers configuration is updated if all layers keep the same number of heads and the
    head dimension is independent of it. Otherwise the configuration cannot represent the result:
    save the ``state_dict`` of the model and load it into ``hw.prune(fresh, heads)``.

    Args:
        model: the model, which is not changed.
        heads: the heads to prune, such as "L0H2,L1H8", counted from 0.

    Raises:
        BadType, BadValue: if a head does not exist, or an attention module cannot be pruned, with
            the reason.

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
    kept = {}
    for site in affected:
        obstacle = reason(site, owners)
        if obstacle is not None:
            raise _refused(site.name, obstacle)
        kept[site.name] = kept_of(site.heads, key_heads(site), numbers[site.name])
    separate_position_biases(attentions, kept)
    for site in affected:
        shrink(site, kept[site.name])
    update_config(smaller)
    return smaller


def _with_headwise_attention(model: nn.Module, layers: Collection[Layer]) -> nn.Module:
    for site in sites(model):
        if not isinstance(site.module, nn.MultiheadAttention) or not set(site.layers) & set(layers):
            continue
        done = convert(site.module)
        if done.left:
            raise _refused(site.name, done.left[0][1])
        model = _replace_module(model, site.module, done.model)
    return model


def _replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    if model is old:
        return new
    for owner in list(model.modules()):
        for name, part in list(owner.named_children()):
            if part is old:
                setattr(owner, name, new)
    return model


def _removed_heads(site: Site, pruned: tuple[Head, ...]) -> set[int]:
    """Return the pruned heads of a module; they must agree in all layers that share the module."""
    by_layer = [{head.number for head in pruned if head.layer == layer} for layer in site.layers]
    if any(numbers != by_layer[0] for numbers in by_layer):
        layers = ", ".join(map(str, site.layers))
        raise BadValue(
            "heads: {layers} share one attention module; prune the same heads in each of these "
            "layers, or use hw.ablate",
            layers=layers,
        )
    return by_layer[0]


def _refused(name: str, obstacle: Text) -> BadValue:
    return BadValue(
        "model: heads of {place} cannot be pruned: {why}; use hw.ablate",
        place=name or "the root module",
        why=obstacle,
    )
