"""A configuration that says what a model has become, where it can say it.

A smaller model: heads cut out of its weights.
"""

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
from headwise.heads.ablation.pruning.shrink import part_ways, shrink
from headwise.heads.ablation.sites import Site, check_exist, parsed, sites
from headwise.heads.names import Head, Layer
from headwise.lang import Text
from headwise.nn import convert


def state(model: nn.Module) -> bool:
    """Write the new numbers of heads into a model's configuration, if it can say them.

    It can if a model made from it has the same parameters of the same shapes, and attentions that
    count the same heads. Otherwise it is left as it was: a configuration has one number of heads
    for all layers, and in many architectures it is also what sets the size of a head.

    Args:
        model: a transformers model with fewer heads.

    Returns:
        Whether it says them now.
    """
    config: Any = getattr(model, "config", None)
    found = sites(model)
    if config is None or len({(site.heads, site.size) for site in found}) > 1:
        return False
    new = copy.deepcopy(config)
    _say(new, found[0])
    try:
        with torch.device("meta"):
            made = type(model)(new)
    except (ValueError, TypeError, AttributeError, RuntimeError, AssertionError):
        return False  # such a model cannot even be made
    if _shapes(made) != _shapes(model) or _head_counts(made) != _head_counts(model):
        return False
    for each in _configurations(model, type(config)):
        _say(each, found[0])
    return True


def _say(config: Any, site: Site) -> None:
    """The numbers of one attention, by transformers' own names for them."""
    config.num_attention_heads = site.heads
    if getattr(config, "num_key_value_heads", None) is not None:
        config.num_key_value_heads = site.heads // getattr(inner(site), SHARES[0], 1)
    config.head_dim = site.size


def _configurations(model: nn.Module, kind: type) -> list[Any]:
    """Every configuration in the model: T5's two stacks have a copy each."""
    found = {
        id(each): each for m in model.modules() if type(each := getattr(m, "config", None)) is kind
    }
    return list(found.values())


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


def _head_counts(model: nn.Module) -> list[list[tuple[str, object]]]:
    """How each attention counts its heads."""
    return [
        [(name, value) for name in COUNTED if (value := inner(site).__dict__.get(name)) is not None]
        for site in sites(model)
    ]


def prune(model: nn.Module, heads: str | Head | Collection[Head | str]) -> nn.Module:
    """A copy of a model without some heads, whose answers equal those of ``ablate(..., "zero")``.

        q_proj  H·D rows   ->  rows of the heads that stay
        k, v    G·D rows   ->  rows of the key/value heads that a query head still reads
        out     H·D columns -> columns of the heads that stay

    A key/value head goes once every query head of its group is gone. Where groups keep different
    numbers of query heads, their keys and values are shown to attention several times, but stored
    and computed once. Where a whole layer is to go, one head stays in it and puts out 0, so that
    the layer still gives its bias. PyTorch's own attention becomes a `headwise.MultiheadAttention`,
    whose heads need not fill embed_dim.

    A transformers configuration says the new numbers where it can: where all layers keep as many
    heads, and the size of a head does not follow from their number. Otherwise the attentions alone
    know; such a model is saved by its ``state_dict`` and loaded into ``hw.prune(fresh, heads)``.

    Args:
        model: left as it is.
        heads: which heads go, such as "L0H2,L1H8", counted from 0.

    Raises:
        BadType, BadValue: if a head does not exist, or an attention cannot be cut; the message
            says why.

    Source: Michel et al. 2019, section 4; Voita et al. 2019, section 6.

    Example:
        >>> import headwise as hw
        >>> encoder = nn.TransformerEncoderLayer(8, 4, batch_first=True).eval()
        >>> small = hw.prune(encoder, "L0H1,L0H3")
        >>> small.self_attn.num_heads, tuple(small.self_attn.out_proj.weight.shape)
        (2, (8, 4))
    """
    gone = parsed(heads)
    check_exist(gone, sites(model))
    smaller = _of_ours(copy.deepcopy(model), {head.layer for head in gone})
    found = sites(smaller)
    numbers = {site.name: _removed_heads(site, gone) for site in found}
    touched = tuple(site for site in found if numbers[site.name])
    owners = Counter(id(p) for m in smaller.modules() for p in m.parameters(recurse=False))
    for site in touched:
        why = reason(site, owners)
        if why is not None:
            raise _refused(site.name, why)
    kept = {site.name: kept_of(site.heads, key_heads(site), numbers[site.name]) for site in touched}
    _cut(found, kept)
    state(smaller)
    return smaller


def _cut(found: tuple[Site, ...], kept: Mapping[str, Kept]) -> None:
    part_ways(found, kept)
    for site in found:
        if site.name in kept:
            shrink(site, kept[site.name])


def _of_ours(model: nn.Module, layers: Collection[Layer]) -> nn.Module:
    """The model with headwise's attention in place of PyTorch's, where heads go."""
    for site in sites(model):
        if not isinstance(site.module, nn.MultiheadAttention) or not set(site.layers) & set(layers):
            continue
        done = convert(site.module)
        if done.left:
            raise _refused(site.name, done.left[0][1])
        model = _put(model, site.module, done.model)
    return model


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """The model with a module in every place of another."""
    if model is old:
        return new
    for owner in list(model.modules()):
        for name, part in list(owner.named_children()):
            if part is old:
                setattr(owner, name, new)
    return model


def _removed_heads(site: Site, gone: tuple[Head, ...]) -> set[int]:
    """The heads of an attention that go; if it serves several layers, the same ones in each."""
    each = {
        layer: frozenset(head.number for head in gone if head.layer == layer)
        for layer in site.layers
    }
    if len(set(each.values())) > 1:
        layers = ", ".join(map(str, site.layers))
        raise BadValue(
            "heads: {layers} are one attention with the same weights, and each loses "
            "other heads; name the same heads in all of them, or take them out with "
            "hw.ablate",
            layers=layers,
        )
    return set(each[site.layers[0]])


def _refused(name: str, why: Text) -> BadValue:
    place = name or "(itself)"
    return BadValue(
        "model: heads of {place} cannot be cut out: {why}; take them out with hw.ablate",
        place=place,
        why=why,
    )
