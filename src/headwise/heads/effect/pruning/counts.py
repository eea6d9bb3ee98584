"""The numbers by which an attention knows how many heads it has."""

import inspect
from typing import Any

from torch import nn

from headwise.heads.effect.pruning.kept import Kept
from headwise.heads.effect.pruning.projections import Shared
from headwise.heads.effect.sites import Site
from headwise.lang import Text
from headwise.nn.projections import features

QUERY_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
KEY_HEADS = ("num_kv_heads", "num_key_value_heads")
SHARES = ("num_key_value_groups",)
WIDTHS = ("all_head_size", "inner_dim", "split_size")
COUNTED = (*QUERY_HEADS, *KEY_HEADS, *SHARES, *WIDTHS)

EMBEDDINGS = ("embed_dim", "hidden_size", "dim", "d_model")
"""What is also the width of all heads together, unless some are gone."""


def key_heads(site: Site) -> tuple[int, ...]:
    """The key/value heads that attention is shown, by number; pruned before, some several times."""
    architecture = site.architecture
    if architecture is None or architecture.fused:
        return tuple(range(site.heads))
    projection = site.module.get_submodule(architecture.projections[1])
    if isinstance(projection, Shared):
        return tuple(projection.order.tolist())
    found = features(projection)
    return tuple(range(found[1] // site.size if found else site.heads))


def inner(site: Site) -> nn.Module:
    """The module that calls attention: BERT's stands inside the one with the projections."""
    if site.architecture is not None and site.architecture.size.startswith("self."):
        return site.module.get_submodule("self")
    return site.module


def recount(site: Site, kept: Kept) -> None:
    """Tell an attention how many heads it has now."""
    module, heads = inner(site), len(kept.heads)
    new = dict.fromkeys(QUERY_HEADS, heads) | dict.fromkeys(KEY_HEADS, len(kept.order))
    new |= dict.fromkeys(SHARES, kept.share) | dict.fromkeys(WIDTHS, heads * site.size)
    for name, number in new.items():
        if isinstance(module.__dict__.get(name), int):
            setattr(module, name, number)


def counts_elsewhere(site: Site) -> Text | None:
    """Why an attention would count wrongly afterwards, or None: it reads its configuration."""
    module: Any = inner(site)
    if type(module).__module__.startswith("headwise."):
        return None
    names = set(inspect.unwrap(type(module).forward).__code__.co_names)
    for name in (*QUERY_HEADS, *KEY_HEADS, *EMBEDDINGS):
        stays = name in EMBEDDINGS or name not in module.__dict__
        if name in names and stays:
            return Text(
                "its code reads {name}, which is not the attention's own to change", name=name
            )
    return None
