"""Gradient importance: the sensitivity of the loss to a gate on each head."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.heads.ablation.hooks import tapped
from headwise.heads.ablation.loss import Batch, Loss, in_evaluation, next_token_loss, several
from headwise.heads.ablation.loss_effects import checked
from headwise.heads.ablation.sites import sites
from headwise.heads.names import Head, Layer


@dataclass(frozen=True, eq=False)
class Importance:
    """The gradient of the loss of each example with respect to the gate of each head at 1.

    Attributes:
        gradients: for each layer (N, H) in float64: dL_n/dξ_h, signed.
    """

    gradients: Mapping[Layer, Tensor]

    def raw(self, head: Head) -> float:
        """The mean absolute gradient: I_h of Michel et al. 2019, equation 3."""
        return self._layer(head.layer)[head.number].item()

    def value(self, head: Head) -> float:
        """``raw`` divided by the Euclidean norm of its layer; 0 if the layer is 0."""
        layer = self._layer(head.layer)
        norm = layer.norm().item()
        return layer[head.number].item() / norm if norm else 0.0

    def spread(self, head: Head) -> float:
        """The standard error of ``value`` over examples, with the norm of the layer fixed."""
        absolute = self.gradients[head.layer].abs()
        norm = self._layer(head.layer).norm().item()
        error = absolute[:, head.number].std().item() / len(absolute) ** 0.5
        return error / norm if norm else 0.0

    def heads(self) -> tuple[Head, ...]:
        """Every head, layer by layer."""
        return tuple(
            Head(layer, number)
            for layer in sorted(self.gradients)
            for number in range(self.gradients[layer].shape[1])
        )

    def ranking(self) -> tuple[Head, ...]:
        """Every head, the least important first; ties by name."""
        return tuple(sorted(self.heads(), key=lambda head: (self.value(head), head)))

    def _layer(self, layer: Layer) -> Tensor:
        return self.gradients[layer].abs().mean(0)


def importance(
    model: nn.Module, batches: Batch | Collection[Batch], loss: Loss = next_token_loss
) -> Importance:
    """The gradient importance of every head on a corpus.

    One forward and one backward pass for each batch. Each head has a gate for each example: the
    absolute value is taken of the gradient of each example, as in the paper; gradients summed over
    a batch would cancel.

    Args:
        model: in eval mode; its parameters receive no gradient.
        batches: the corpus; examples lie along the first dimension of what the model is given.
        loss: takes the model and a batch, and returns one loss for each example.

    Raises:
        BadType, BadValue: if an argument is invalid, or examples are not along the first dimension.

    Source: Michel et al. 2019, section 4.1: I_h = E_x |dL(x)/dξ_h|, divided by the layer's
        Euclidean norm, after Molchanov et al. 2017.

    Example:
        >>> import headwise as hw
        >>> layer = hw.MultiheadAttention(8, 2, batch_first=True).eval()
        >>> size = lambda model, x: model(x, x, x)[0].square().mean((1, 2))
        >>> found = importance(layer, torch.randn(5, 3, 8), size)
        >>> sum(found.value(head) ** 2 for head in found.heads()).__round__(12)
        1.0
    """
    in_evaluation(model)
    gradients: dict[Layer, list[Tensor]] = {}
    for batch in several(batches, "batches"):
        gates: dict[Layer, Tensor] = {}
        with torch.enable_grad():
            with gated(model, gates):
                losses = checked(loss(model, batch))
            slopes = torch.autograd.grad(
                losses.sum(), list(gates.values()), allow_unused=True, materialize_grads=True
            )
        for layer, slope in zip(gates, slopes, strict=True):
            if len(slope) != len(losses):
                raise _indistinguishable(len(losses), len(slope))
            gradients.setdefault(layer, []).append(slope.double().cpu())
    return Importance({layer: torch.cat(gradients[layer]) for layer in sorted(gradients)})


@contextmanager
def gated(model: nn.Module, gates: dict[Layer, Tensor]) -> Iterator[None]:
    """Multiply the outputs of heads by gates (B, H); missing gates are added with value 1."""
    attentions = sites(model)

    def gate(layer: Layer, outputs: Tensor) -> Tensor:
        if layer not in gates:
            shape = (*outputs.shape[:-3], outputs.shape[-2])
            gates[layer] = outputs.new_ones(shape[-2:] if len(shape) > 1 else (1, *shape))
            gates[layer].requires_grad_()
        if outputs.dim() != 4 or len(gates[layer]) != len(outputs):
            raise _indistinguishable(len(gates[layer]), len(outputs))
        return outputs * gates[layer][:, None, :, None]

    layers = [layer for site in attentions for layer in site.layers]
    with tapped(model, attentions, layers, gate):
        yield


def _indistinguishable(examples: int, rows: int) -> BadValue:
    return BadValue(
        "batches: {examples} losses and {rows} rows inside the model, so that examples "
        "cannot be told apart; give examples along the first dimension, one pass a batch",
        examples=examples,
        rows=rows,
    )
