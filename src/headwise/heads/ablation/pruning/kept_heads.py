"""The query heads that are kept, their key/value heads, and the head counts of a module."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from torch import nn

from headwise.heads.ablation.pruning.slicing import Shared
from headwise.heads.ablation.sites import Site
from headwise.lang import Text
from headwise.nn.projections import features


@dataclass(frozen=True)
class Kept:
    """The heads kept in one attention module.

    Attributes:
        heads: the query heads, ascending.
        silent: whether all heads were to be pruned; one is then kept, with output weights of 0.
        groups: the key/value heads with a kept query head.
        order: for each key/value head passed to attention, its index in ``groups``. If groups
            keep different numbers of query heads, some are repeated.
        shown: the same heads, by their indices before pruning.
        share: the number of query heads for each key/value head passed to attention.
    """

    heads: tuple[int, ...]
    silent: bool
    groups: tuple[int, ...]
    order: tuple[int, ...]
    shown: tuple[int, ...]
    share: int

    @property
    def plain(self) -> bool:
        """Whether no key/value head is repeated."""
        return self.order == tuple(range(len(self.groups)))


def kept_of(total: int, order: Sequence[int], gone: set[int]) -> Kept:
    """The heads kept after pruning.

    Args:
        total: the number of query heads.
        order: the key/value heads passed to attention: (0, 1, 2) for three without repetition.
        gone: the pruned query heads.

    Example:
        >>> kept = kept_of(6, (0, 1, 2), {0, 1, 4})  # 2, 3 share group 1; 5 is alone on group 2
        >>> kept.heads, kept.groups, kept.order, kept.share
        ((2, 3, 5), (1, 2), (0, 0, 1), 1)
        >>> kept_of(6, (0, 1, 2), {0, 2, 4}).order  # one head of each group
        (0, 1, 2)
    """
    group_size = total // len(order)
    heads = [number for number in range(total) if number not in gone]
    silent = not heads
    heads = heads or [0]
    read = [order[number // group_size] for number in heads]
    groups = sorted(set(read))
    counts = [read.count(group) for group in groups]
    share = gcd(*counts)
    new = tuple(n for n, count in enumerate(counts) for _ in range(count // share))
    shown = tuple(number // group_size for number in heads[::share])
    return Kept(tuple(heads), silent, tuple(groups), new, shown, share)


QUERY_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
KEY_HEADS = ("num_kv_heads", "num_key_value_heads")
SHARES = ("num_key_value_groups",)
WIDTHS = ("all_head_size", "inner_dim", "split_size")
COUNTED = (*QUERY_HEADS, *KEY_HEADS, *SHARES, *WIDTHS)

EMBEDDINGS = ("embed_dim", "hidden_size", "dim", "d_model")
"""Attributes that equal H·D only before pruning."""


def key_heads(site: Site) -> tuple[int, ...]:
    """The key/value heads passed to attention; repeated ones in a pruned module."""
    architecture = site.architecture
    if architecture is None or architecture.fused:
        return tuple(range(site.heads))
    projection = site.module.get_submodule(architecture.projections[1])
    if isinstance(projection, Shared):
        return tuple(projection.order.tolist())
    sizes = features(projection)
    return tuple(range(sizes[1] // site.size if sizes else site.heads))


def inner(site: Site) -> nn.Module:
    """The module that calls attention; in BERT it is a child of the one with the projections."""
    if site.architecture is not None and site.architecture.size.startswith("self."):
        return site.module.get_submodule("self")
    return site.module


def recount(site: Site, kept: Kept) -> None:
    """Set the head counts of an attention module."""
    module, heads = inner(site), len(kept.heads)
    new = dict.fromkeys(QUERY_HEADS, heads) | dict.fromkeys(KEY_HEADS, len(kept.order))
    new |= dict.fromkeys(SHARES, kept.share) | dict.fromkeys(WIDTHS, heads * site.size)
    for name, number in new.items():
        if isinstance(module.__dict__.get(name), int):
            setattr(module, name, number)


def counts_elsewhere(site: Site) -> Text | None:
    """The reason if a module reads its head count from elsewhere, or None."""
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
