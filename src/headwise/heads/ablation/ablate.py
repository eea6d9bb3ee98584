"""Ablate heads of a model in a context."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.heads.ablation.hooks import tapped
from headwise.heads.ablation.loss import Batch, several
from headwise.heads.ablation.methods import (
    UNIFORM,
    ZERO,
    Method,
    check_uniform,
    method_named,
    read,
    replacement_of,
)
from headwise.heads.ablation.sites import check_exist, parsed, sites
from headwise.heads.names import Head, Layer, by_layer


@dataclass(frozen=True)
class Ablation:
    """The ablated heads and the method."""

    heads: tuple[Head, ...]
    kind: Method


@contextmanager
def ablate(
    model: nn.Module,
    heads: str | Head | Collection[Head | str],
    kind: str = ZERO.name,
    *,
    reference: Batch | Collection[Batch] = (),
    seed: int = 0,
) -> Iterator[Ablation]:
    """Ablate heads of a model inside a ``with`` statement.

    Works on transformers (>= 5) models and on modules that contain `torch.nn.MultiheadAttention` or
    `headwise.MultiheadAttention`. The model is restored on exit, also after an error.

    Args:
        model: the model.
        heads: names such as "L0H2,cross.L1H8", counted from 0, as `headwise inspect` shows them.
        kind: "zero", "mean", "resample" or "uniform"; formulas and sources are in
            `headwise.heads.ablation.METHODS`.
        reference: for "mean" and "resample", the reference batches, each a mapping of inputs, a
            tuple or a tensor.
        seed: for "resample", the seed of the sampled reference texts.

    Yields:
        An `Ablation` with the heads and the method.

    Raises:
        BadType, BadValue: if a head does not exist, the kind is unknown, the reference is missing
            or of another length, or the model has attention modules of unknown architecture.

    Example:
        >>> import headwise as hw
        >>> layer = hw.MultiheadAttention(8, 2, batch_first=True).eval()
        >>> x = torch.randn(1, 3, 8)
        >>> with hw.ablate(layer, "L0H0,L0H1"):
        ...     output, _ = layer(x, x, x)
        >>> torch.equal(output, layer.out_proj.bias.expand(1, 3, 8))
        True
    """
    method, selected, attentions = method_named(kind), parsed(heads), sites(model)
    check_exist(selected, attentions)
    numbers = grouped(selected)
    if method is UNIFORM:
        check_uniform(attentions, numbers)
    replacement = replacement_of(method, seed)
    if method.reference:
        read(model, attentions, numbers, replacement, several(reference, "reference"))

    def edit(layer: Layer, outputs: Tensor) -> Tensor:
        index = torch.tensor(numbers[layer], device=outputs.device)
        replaced = replacement.heads(layer, outputs[..., index, :])
        return outputs.index_copy(outputs.dim() - 2, index, replaced)

    start = model.register_forward_pre_hook(replacement.begin)
    try:
        with tapped(model, attentions, numbers, edit, queries=method is UNIFORM):
            yield Ablation(selected, method)
    finally:
        start.remove()


def grouped(heads: Collection[Head]) -> dict[Layer, list[int]]:
    """The numbers of heads in each layer, ascending.

    Example:
        >>> grouped(parsed("L1H2,L0H1,L1H0"))
        {Layer(part='', number=0): [1], Layer(part='', number=1): [0, 2]}
    """
    return {layer: [head.number for head in own] for layer, own in by_layer(heads).items()}
