"""Variance of the signal and of the gradient through a stack of layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue

Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Flow:
    """Variances before the first layer and after every layer; printed as a table.

    Attributes:
        signal: of the input, then of the output of every layer: N + 1 numbers.
        gradient: of the gradient at the same places; the last is that of the random gradient, of
            variance about 1, with which the backward pass starts.
    """

    signal: tuple[float, ...]
    gradient: tuple[float, ...]

    def __str__(self) -> str:
        head = f"{'after layer':>11}  {'signal':>9}  {'gradient':>9}"
        pairs = zip(self.signal, self.gradient, strict=True)
        rows = (f"{n:>11}  {up:>9.3g}  {down:>9.3g}" for n, (up, down) in enumerate(pairs))
        return "\n".join((head, *rows))


def measure(layers: Sequence[Layer], x: Tensor, *, seed: int = 0) -> Flow:
    """The variance of the signal and of the gradient after every layer.

    Both are taken over all entries of one input and one gradient: draw x from N(0, 1), and take
    enough entries for the differences of interest.

    Args:
        layers: functions of one tensor, in order; of an attention
            ``lambda x: attention(x, x, x, need_weights=False)[0]``.
        x: the input of the first layer, floating point.
        seed: of the gradient with which the backward pass starts.

    Returns:
        A `Flow`; the gradients of parameters are left unchanged.

    Raises:
        BadType: if x or the output of a layer is no floating point tensor.
        BadValue: if there is no layer, or x has fewer than two entries.

    Example:
        >>> def double(x):
        ...     return 2 * x
        >>> print(measure([double, double], torch.tensor([-1.0, 0.0, 1.0])))
        after layer     signal   gradient
                  0          1       55.4
                  1          4       13.8
                  2         16       3.46
    """
    layers = list(layers)
    if not layers:
        raise BadValue("layers: expected at least one function of a tensor, got none")
    _check_floating("x", x)
    if x.numel() < 2:
        raise BadValue(
            "x: expected at least two entries to have a variance, got {shape}", shape=tuple(x.shape)
        )
    with torch.enable_grad():
        signals = [x.detach().requires_grad_()]
        for number, layer in enumerate(layers):
            signals.append(layer(signals[-1]))
            _check_floating(f"layers[{number}]", signals[-1])
        generator = torch.Generator().manual_seed(seed)
        last = torch.randn(signals[-1].shape, generator=generator).to(signals[-1])
        gradients = torch.autograd.grad(signals[-1], signals, last)
    return Flow(_variances(signals), _variances(gradients))


def _variances(tensors: Sequence[Tensor]) -> tuple[float, ...]:
    return tuple(tensor.detach().double().var().item() for tensor in tensors)


def _check_floating(name: str, value: object) -> None:
    if isinstance(value, Tensor) and value.is_floating_point():
        return
    raise BadType(
        "{name}: expected a floating point tensor, got {got}; wrap an attention that also returns "
        "weights as lambda x: attention(x, x, x)[0]",
        name=name,
        got=value.dtype if isinstance(value, Tensor) else type(value).__name__,
    )
