"""Whether heads of an attention module can be pruned."""

from collections import Counter

import torch
from torch import nn

from headwise.errors import BadValue
from headwise.heads.ablation.pruning.kept_heads import counts_elsewhere
from headwise.heads.ablation.pruning.slicing import Shared
from headwise.heads.ablation.sites import Site
from headwise.lang import Text
from headwise.masks import Mask
from headwise.nn import MultiheadAttention
from headwise.nn.projections import attribute
from headwise.positions import POSITIONS, Position
from headwise.shapes import AttentionShape

CPU = torch.device("cpu")

CONV1D = "Conv1D"
"""The projection class of GPT-2 in transformers."""

HEAD_NORMS = ("q_norm", "k_norm", "query_norm", "key_norm", "q_layernorm", "k_layernorm")
"""Normalisations of each head; unchanged if they have the size of one head."""

BY_HEAD = ("sinks", "relative_attention_bias.weight", "bias_k", "bias_v")
"""Parameters that are pruned along with the heads."""


def reason(site: Site, owners: Counter[int]) -> Text | None:
    """The reason why heads cannot be pruned, or None.

    Args:
        site: the attention module, not PyTorch's, which is converted first.
        owners: the number of modules with each parameter, by ``id``.
    """
    architecture = site.architecture
    assert architecture is not None  # noqa: S101 - see above
    paths = [
        *architecture.projections,
        *([architecture.fused] if architecture.fused else []),
        architecture.out,
    ]
    for path in paths:
        projection = attribute(site.module, path)
        if type(projection) not in (nn.Linear, Shared) and type(projection).__name__ != CONV1D:
            kind = type(projection).__name__
            return Text("{path} is a {kind}, no plain nn.Linear", path=path, kind=kind)
    if any(owners[id(parameter)] > 1 for parameter in site.module.parameters()):
        return Text("it shares a parameter with another module")
    if isinstance(site.module, MultiheadAttention):
        ours = _headwise_part(site.module)
        if ours is not None:
            return ours
    return counts_elsewhere(site) or _unknown_part(site, tuple(paths))


def _unknown_part(site: Site, paths: tuple[str, ...]) -> Text | None:
    """The reason if the head of a slice of a parameter or buffer is unknown, or None."""
    known = (*(f"{path}." for path in paths), *(f"{path}." for path in site.architecture.beside))  # type: ignore[union-attr]
    tensors = [*site.module.named_parameters(), *site.module.named_buffers()]
    for name, tensor in tensors:
        if name.startswith((*known, "global_proj.", "position.")) or name in BY_HEAD:
            continue
        words = name.split(".")
        if words[0] in HEAD_NORMS and tensor.numel() == site.size:
            continue
        return Text("it is not known which part of {name} belongs to which head", name=name)
    return None


def _headwise_part(module: MultiheadAttention) -> Text | None:
    """The reason if a headwise module has a part of single heads that cannot be pruned, or None."""
    if module.mask is not None and not _same_for_all_heads(module.mask):
        return Text("its mask {mask} may differ from head to head", mask=module.mask)
    position: Position | None = module.position
    if position is not None and not _headless_position(position):
        name = type(position).__name__
        return Text("its {name} has numbers of each head", name=name)
    for name in ("gate", "logit_scale"):
        if getattr(module, name, None) is not None:
            return Text("its {name} is made for all its heads", name=name)
    return None


def _headless_position(position: Position) -> bool:
    """Whether a position is known to have no numbers of single heads."""
    return isinstance(position, POSITIONS) and "H" not in position.expected_sizes()


def _same_for_all_heads(mask: Mask) -> bool:
    """Whether a mask is known to be the same for all heads: its rule has no axis of heads."""
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
