"""Shrink an attention module in place to the heads that remain after pruning."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn

from headwise.heads.ablation.sites import Site
from headwise.lang import Text
from headwise.nn.projections import features, is_transposed


class Shared(nn.Linear):
    """A projection to key/value heads that repeats heads in its output but stores them once.

    Args:
        of: the projection to repeat, with G heads of ``size``.
        order: for each output head, its index among the G heads.
        size: the head dimension.

    Example:
        >>> one = nn.Linear(1, 2, bias=False)
        >>> _ = nn.init.constant_(one.weight, 3.0)
        >>> Shared(one, (0, 0, 1), 1)(torch.ones(1, 1)).tolist()
        [[3.0, 3.0, 3.0]]
    """

    order: Tensor

    def __init__(self, of: nn.Linear, order: Sequence[int], size: int) -> None:
        super().__init__(of.in_features, of.out_features, False, "meta")  # no memory
        self.weight, self.bias = of.weight, of.bias
        self.size = size
        index = torch.tensor(order, device=of.weight.device)
        self.register_buffer("order", index, persistent=False)
        self.train(of.training)

    def forward(self, x: Tensor) -> Tensor:
        """Project (..., in) to (..., len(order) · size)."""
        heads = torch.unflatten(super().forward(x), -1, (-1, self.size))
        return heads.index_select(-2, self.order).flatten(-2)

    def extra_repr(self) -> str:
        """Return the sizes and the order of the heads for ``repr``."""
        return f"{super().extra_repr()}, order={self.order.tolist()}"


def rows_of(heads: Sequence[int], size: int) -> Tensor:
    """Return the rows of heads in a projection: 0, 1, 4, 5 for heads 0 and 2 of size 2."""
    return (torch.tensor(heads)[:, None] * size + torch.arange(size)).flatten()


def keep_outputs(projection: nn.Module, rows: Tensor) -> None:
    """Shrink a projection in place to some of its output features."""
    keep(projection, "weight", 1 if is_transposed(projection) else 0, rows)
    keep(projection, "bias", 0, rows)
    _update_sizes(projection)


def repeated_heads(projection: nn.Linear, order: Sequence[int], size: int) -> nn.Linear:
    """Return a projection with heads repeated in an order; it shares the parameters."""
    if list(order) != list(range(len(order))):
        return Shared(projection, order, size)
    if not isinstance(projection, Shared):
        return projection
    plain = nn.Linear(projection.in_features, projection.out_features, False, "meta")
    plain.weight, plain.bias = projection.weight, projection.bias
    return plain.train(projection.training)


def keep(module: nn.Module, name: str, axis: int, index: Tensor) -> None:
    """Keep some indices of a parameter along an axis, if the module has the parameter."""
    whole: nn.Parameter | None = getattr(module, name, None)
    if whole is None:
        return
    part = whole.detach().index_select(axis, index.to(whole.device)).contiguous()
    setattr(module, name, nn.Parameter(part, requires_grad=whole.requires_grad))


def _update_sizes(projection: nn.Module) -> None:
    names = ("nx", "nf") if is_transposed(projection) else ("in_features", "out_features")
    for name, number in zip(names, features(projection) or (0, 0), strict=True):
        setattr(projection, name, number)


@dataclass(frozen=True)
class Kept:
    """The heads that remain in an attention module after pruning.

    Attributes:
        heads: the query heads, ascending.
        silent: whether all heads were pruned; one head then stays, with output weights of 0.
        groups: the key/value heads with a remaining query head.
        order: for each key/value head passed to attention, its index in ``groups``; an index is
            repeated if groups keep different numbers of query heads.
        shown: the key/value heads passed to attention, by their indices before pruning.
        share: the number of query heads for each key/value head passed to attention.
    """

    heads: tuple[int, ...]
    silent: bool
    groups: tuple[int, ...]
    order: tuple[int, ...]
    shown: tuple[int, ...]
    share: int


def kept_of(total: int, order: Sequence[int], gone: set[int]) -> Kept:
    """Return the heads that remain after pruning the query heads ``gone`` out of ``total``.

    ``order`` lists the key/value heads passed to attention, such as (0, 1, 2) without repetition.

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
EMBEDDINGS = ("embed_dim", "hidden_size", "dim", "d_model")  # equal to H·D only before pruning


def key_heads(site: Site) -> tuple[int, ...]:
    """Return the key/value heads passed to attention, repeated if the module was pruned."""
    architecture = site.architecture
    if architecture is None or architecture.fused:
        return tuple(range(site.heads))
    projection = site.module.get_submodule(architecture.projections[1])
    if isinstance(projection, Shared):
        return tuple(projection.order.tolist())
    sizes = features(projection)
    return tuple(range(sizes[1] // site.size if sizes else site.heads))


def inner(site: Site) -> nn.Module:
    """Return the module that calls attention; in BERT, it is a child of the projections' module."""
    if site.architecture is not None and site.architecture.size.startswith("self."):
        return site.module.get_submodule("self")
    return site.module


def recount(site: Site, kept: Kept) -> None:
    """Set the head counts of an attention module to those after pruning."""
    module, heads = inner(site), len(kept.heads)
    new = dict.fromkeys(QUERY_HEADS, heads) | dict.fromkeys(KEY_HEADS, len(kept.order))
    new |= dict.fromkeys(SHARES, kept.share) | dict.fromkeys(WIDTHS, heads * site.size)
    for name, number in new.items():
        if isinstance(module.__dict__.get(name), int):
            setattr(module, name, number)


def counts_elsewhere(site: Site) -> Text | None:
    """Return why the head count in the code of a module cannot be changed, or None."""
    module: Any = inner(site)
    if type(module).__module__.startswith("headwise."):
        return None
    names = set(inspect.unwrap(type(module).forward).__code__.co_names)
    for name in (*QUERY_HEADS, *KEY_HEADS, *EMBEDDINGS):
        if name in names and (name in EMBEDDINGS or name not in module.__dict__):
            return Text("its code reads {name}, which pruning cannot change", name=name)
    return None


TABLE = "relative_attention_bias"


def separate_position_biases(attentions: tuple[Site, ...], kept: Mapping[str, Kept]) -> None:
    """Give each layer of a T5 stack its own bias table if its layers will differ in heads.

    Call it before pruning. ``kept`` maps names of modules to their kept heads; other modules keep
    all heads.
    """
    t5 = [site for site in attentions if site.architecture and site.architecture.name == "T5"]
    for part in ("", "encoder", "decoder", "cross"):
        stack = [site for site in t5 if site.layers[0].part == part]
        heads = [
            kept[site.name].heads if site.name in kept else tuple(range(site.heads))
            for site in stack
        ]
        if len(set(heads)) < 2:
            continue
        first = next((site.module for site in stack if hasattr(site.module, TABLE)), None)
        for site in stack:
            if first is not None and not hasattr(site.module, TABLE):
                setattr(site.module, TABLE, copy.deepcopy(getattr(first, TABLE)))
                setattr(site.module, f"has_{TABLE}", True)
            site.module.register_forward_pre_hook(_without_bias_of_layer_below, with_kwargs=True)


def _without_bias_of_layer_below(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, {**kwargs, "position_bias": None}


def shrink(site: Site, kept: Kept) -> None:
    """Shrink all parameters of an attention module to the kept heads."""
    architecture = site.architecture
    assert architecture is not None  # noqa: S101 - PyTorch's own is converted first
    module, heads = site.module, rows_of(kept.heads, site.size)
    if architecture.fused:
        rows = rows_of(kept.heads, 3 * site.size)
        if not architecture.by_head:
            width = site.heads * site.size
            rows = torch.cat([heads, heads + width, heads + 2 * width])
        keep_outputs(module.get_submodule(architecture.fused), rows)
    else:
        _shrink_separate(module, architecture.projections, kept, site.size)
    if getattr(module, "global_proj", None) is not None:
        global_proj = module.get_submodule("global_proj")
        _shrink_separate(global_proj, architecture.projections, kept, site.size)
    keep(site.out, "weight", 0 if is_transposed(site.out) else 1, heads)
    _update_sizes(site.out)
    if kept.silent:
        nn.init.zeros_(site.out.weight)  # type: ignore[arg-type]
    _shrink_vectors(module, kept, site.size)
    recount(site, kept)


def _shrink_separate(module: nn.Module, paths: tuple[str, ...], kept: Kept, size: int) -> None:
    """Shrink separate projections: q to the kept heads, k and v to the key/value heads."""
    q, *others = paths
    keep_outputs(module.get_submodule(q), rows_of(kept.heads, size))
    for path in others:
        owner, _, last = path.rpartition(".")
        projection = module.get_submodule(path)
        assert isinstance(projection, nn.Linear)  # noqa: S101 - Conv1D is never apart
        keep_outputs(projection, rows_of(kept.groups, size))
        setattr(module.get_submodule(owner), last, repeated_heads(projection, kept.order, size))


def _shrink_vectors(module: nn.Module, kept: Kept, size: int) -> None:
    heads = torch.tensor(kept.heads)
    keep(module, "sinks", 0, heads)
    for name in ("bias_k", "bias_v"):
        keep(module, name, 2, rows_of(kept.shown, size))
    table = getattr(module, TABLE, None)
    if isinstance(table, nn.Embedding):
        keep(table, "weight", 1, heads)
        table.embedding_dim = len(kept.heads)
