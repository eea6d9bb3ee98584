"""Shrink one attention module in place, and T5's position bias with it.

In T5 the first layer of a stack computes the bias for all layers; once their heads differ, each
layer computes its own.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.heads.ablation.pruning.slicing import (
    Kept,
    keep,
    keep_inputs,
    keep_outputs,
    recount,
    rows_of,
    shown,
)
from headwise.heads.ablation.sites import Site

TABLE = "relative_attention_bias"
HAS = "has_relative_attention_bias"


def separate_position_biases(attentions: tuple[Site, ...], kept: Mapping[str, Kept]) -> None:
    """Before pruning: give each layer of T5's stacks its own bias table if needed.

    Args:
        attentions: the attention modules of a model.
        kept: the kept heads by module name; the other modules keep all.
    """
    for part in ("", "encoder", "decoder", "cross"):
        stack = [site for site in attentions if _is_t5(site) and site.layers[0].part == part]
        variants = {_kept_heads(site, kept) for site in stack}
        if len(variants) < 2:
            continue
        first = next((site.module for site in stack if hasattr(site.module, TABLE)), None)
        for site in stack:
            if first is not None and not hasattr(site.module, TABLE):
                setattr(site.module, TABLE, copy.deepcopy(getattr(first, TABLE)))
                setattr(site.module, HAS, True)
            site.module.register_forward_pre_hook(own_bias, with_kwargs=True)


def own_bias(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Forward pre-hook: drop the bias of the layer below, so that this layer computes its own."""
    del module
    return args, {**kwargs, "position_bias": None}


def _is_t5(site: Site) -> bool:
    return site.architecture is not None and site.architecture.name == "T5"


def _kept_heads(site: Site, kept: Mapping[str, Kept]) -> tuple[int, ...]:
    own = kept.get(site.name)
    return tuple(range(site.heads)) if own is None else own.heads


def shrink(site: Site, kept: Kept) -> None:
    """Prune all parameters of an attention module to the kept heads.

    Args:
        site: an attention module that can be pruned.
        kept: the kept heads.
    """
    architecture = site.architecture
    assert architecture is not None  # noqa: S101 - PyTorch's own is converted first
    module, heads = site.module, rows_of(kept.heads, site.size)
    if architecture.fused:
        one = module.get_submodule(architecture.fused)
        keep_outputs(one, _fused_rows(site, kept, architecture.by_head))
    else:
        _shrink_separate(module, architecture.projections, kept, site.size)
    if getattr(module, "global_proj", None) is not None:
        _shrink_separate(
            module.get_submodule("global_proj"), architecture.projections, kept, site.size
        )
    keep_inputs(site.out, heads)
    if kept.silent:
        nn.init.zeros_(site.out.weight)  # type: ignore[arg-type]
    _shrink_vectors(module, kept, site.size)
    recount(site, kept)


def _shrink_separate(module: nn.Module, paths: tuple[str, ...], kept: Kept, size: int) -> None:
    """Prune separate projections: q by heads, k and v by key/value heads."""
    q, *others = paths
    keep_outputs(module.get_submodule(q), rows_of(kept.heads, size))
    for path in others:
        owner, _, last = path.rpartition(".")
        projection = module.get_submodule(path)
        assert isinstance(projection, nn.Linear)  # noqa: S101 - Conv1D is never apart
        keep_outputs(projection, rows_of(kept.groups, size))
        setattr(module.get_submodule(owner), last, shown(projection, kept.order, size))


def _fused_rows(site: Site, kept: Kept, by_head: bool) -> Tensor:
    """The kept rows of a fused projection."""
    if by_head:
        return rows_of(kept.heads, 3 * site.size)
    part = rows_of(kept.heads, site.size)
    width = site.heads * site.size
    return torch.cat([part, part + width, part + 2 * width])


def _shrink_vectors(module: nn.Module, kept: Kept, size: int) -> None:
    """Prune the other parameters of single heads."""
    heads = torch.tensor(kept.heads)
    keep(module, "sinks", 0, heads)
    for name in ("bias_k", "bias_v"):
        keep(module, name, 2, rows_of(kept.shown, size))
    table = getattr(module, "relative_attention_bias", None)
    if isinstance(table, nn.Embedding):
        keep(table, "weight", 1, heads)
        table.embedding_dim = len(kept.heads)
