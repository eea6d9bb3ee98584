"""`ablate`, the context manager that ablates heads of a model."""

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
    """The ablated heads and the ablation method."""

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

    Supports transformers (>= 5) models and modules that contain `torch.nn.MultiheadAttention` or
    `headwise.MultiheadAttention`. The model is restored on exit, also after an error.

    Args:
        model: the model.
        heads: the heads to ablate: names such as "L0H2,cross.L1H8", counted from 0, as in
            `headwise inspect`, or a collection of `Head`.
        kind: "zero", "mean", "resample" or "uniform"; `headwise.heads.ablation.METHODS` lists the
            formulas and sources.
        reference: the reference batches of "mean" and "resample": each is a mapping of inputs, a
            tuple or a tensor.
        seed: the seed with which "resample" samples reference texts.

    Yields:
        An `Ablation` with the ablated heads and the method.

    Raises:
        BadType, BadValue: if a head does not exist, ``kind`` is unknown, ``reference`` is missing
            or has texts of another length, or the architecture of the model is not supported.

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
    """Return the sorted head numbers of each layer.

    Example:
        >>> grouped(parsed("L1H2,L0H1,L1H0"))
        {Layer(part='', number=0): [1], Layer(part='', number=1): [0, 2]}
    """
    return {layer: [head.number for head in own] for layer, own in by_layer(heads).items()}
