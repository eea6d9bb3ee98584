"""T5's bias of positions, where each layer has other heads.

The first layer of a stack makes the bias for all; once heads differ, each layer makes its own.
"""

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from headwise.heads.effect.pruning.kept import Kept
from headwise.heads.effect.sites import Site

TABLE = "relative_attention_bias"
HAS = "has_relative_attention_bias"


def part_ways(found: tuple[Site, ...], kept: Mapping[str, Kept]) -> None:
    """Before anything is cut: give each layer of T5's stacks a bias of its own where it must.

    Args:
        found: the attentions of a model.
        kept: what stays of some, by their names; the others keep all.
    """
    for part in ("", "encoder", "decoder", "cross"):
        stack = [site for site in found if _takes_turns(site) and site.layers[0].part == part]
        every = {_heads(site, kept) for site in stack}
        if len(every) < 2:
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
    """Before each call: forget the bias that the layer below made; then this one makes its own."""
    del module
    return args, {**kwargs, "position_bias": None}


def _takes_turns(site: Site) -> bool:
    return site.architecture is not None and site.architecture.name == "T5"


def _heads(site: Site, kept: Mapping[str, Kept]) -> tuple[int, ...]:
    own = kept.get(site.name)
    return tuple(range(site.heads)) if own is None else own.heads
