"""Why heads of an attention cannot be cut out."""

from collections import Counter

from torch import nn

from headwise.heads.ablation.pruning.kept_heads import counts_elsewhere
from headwise.heads.ablation.pruning.slicing import Shared
from headwise.heads.ablation.sites import Site
from headwise.lang import Text
from headwise.masks import Mask
from headwise.masks.mask import And, Not, Or
from headwise.nn import MultiheadAttention
from headwise.nn.projections import attribute
from headwise.positions import Learned, NoPosition, Position, Rotary, Shaw, Sinusoidal

CONV1D = "Conv1D"
"""transformers' own class of projection, in GPT-2."""

EACH_HEAD_ALIKE = (NoPosition, Sinusoidal, Learned, Rotary, Shaw)
"""Positions that have nothing of one head's own."""

MASKS_OF_ALL = (
    "causal", "dilated", "documents", "fixed", "full", "global_tokens", "padding", "prefix",
    "strided", "window",
)  # fmt: skip
"""The files of masks that are the same for every head."""

PARTS_OF_A_HEAD = ("q_norm", "k_norm", "query_norm", "key_norm", "q_layernorm", "k_layernorm")
"""Normalisations that each head goes through; they stay if they are of one head's size."""

BY_HEAD = ("sinks", "relative_attention_bias.weight", "bias_k", "bias_v")
"""Parameters that are cut along."""


def reason(site: Site, owners: Counter[int]) -> Text | None:
    """Why not, or None.

    Args:
        site: the attention; none of PyTorch's own, which is converted first.
        owners: how many modules hold each parameter, by its identity.
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
        ours = _of_ours(site.module)
        if ours is not None:
            return ours
    return counts_elsewhere(site) or _unknown(site, tuple(paths))


def _unknown(site: Site, paths: tuple[str, ...]) -> Text | None:
    """A parameter or buffer whose part in each head is not known, or None."""
    known = (*(f"{path}." for path in paths), *(f"{path}." for path in site.architecture.beside))  # type: ignore[union-attr]
    held = [*site.module.named_parameters(), *site.module.named_buffers()]
    for name, tensor in held:
        if name.startswith((*known, "global_proj.", "position.")) or name in BY_HEAD:
            continue
        words = name.split(".")
        if words[0] in PARTS_OF_A_HEAD and tensor.numel() == site.size:
            continue
        return Text("it is not known which part of {name} belongs to which head", name=name)
    return None


def _of_ours(module: MultiheadAttention) -> Text | None:
    """What a module of headwise has that is one head's own and cannot be cut, or None."""
    if module.mask is not None and not _for_all(module.mask):
        return Text("its mask {mask} may differ from head to head", mask=module.mask)
    position: Position | None = module.position
    if position is not None and not isinstance(position, EACH_HEAD_ALIKE):
        name = type(position).__name__
        return Text("its {name} has numbers of each head", name=name)
    for name in ("gate", "logit_scale"):
        if getattr(module, name, None) is not None:
            return Text("its {name} is made for all its heads", name=name)
    return None


def _for_all(mask: Mask) -> bool:
    """Whether a mask is known to be the same for all heads."""
    if isinstance(mask, And | Or):
        return _for_all(mask.left) and _for_all(mask.right)
    if isinstance(mask, Not):
        return _for_all(mask.inner)
    return type(mask).__module__.rpartition(".")[2] in MASKS_OF_ALL
