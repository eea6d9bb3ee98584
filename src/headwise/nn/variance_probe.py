"""What a stack of layers makes of a signal on its way up, and of a gradient on its way down."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue

Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Flow:
    """Variances before the first layer and after each; print it to read it.

    Attributes:
        signal: of the input, then of each layer's output: N + 1 numbers.
        gradient: of the gradient that arrives at the same places; the last is that of the random
            gradient of variance about 1 that is put in at the top.
    """

    signal: tuple[float, ...]
    gradient: tuple[float, ...]

    def __str__(self) -> str:
        head = f"{'after layer':>11}  {'signal':>9}  {'gradient':>9}"
        pairs = zip(self.signal, self.gradient, strict=True)
        rows = (f"{n:>11}  {up:>9.3g}  {down:>9.3g}" for n, (up, down) in enumerate(pairs))
        return "\n".join((head, *rows))


def measure(layers: Sequence[Layer], x: Tensor, *, seed: int = 0) -> Flow:
    """The variance of the signal and of the gradient, layer by layer.

    The numbers of one input and one gradient, both over all entries: draw x from N(0, 1), and take
    enough entries for the differences that matter.

    Args:
        layers: functions of one tensor, the first one first; an attention is one by
            ``lambda x: attention(x, x, x, need_weights=False)[0]``.
        x: the input of the first, floating point.
        seed: of the gradient at the top.

    Returns:
        A `Flow`; no parameter's gradient is touched.

    Raises:
        BadType: if x or what a layer gives is no floating point tensor.
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
    _check("x", x)
    if x.numel() < 2:
        raise BadValue(
            "x: expected at least two entries to have a variance, got {x_shape}",
            x_shape=tuple(x.shape),
        )
    with torch.enable_grad():
        points = [x.detach().requires_grad_()]
        for number, layer in enumerate(layers):
            points.append(layer(points[-1]))
            _check(f"layers[{number}]", points[-1])
        draw = torch.Generator().manual_seed(seed)
        top = torch.randn(points[-1].shape, generator=draw).to(points[-1])
        gradients = torch.autograd.grad(points[-1], points, top)
    return Flow(_variances(points), _variances(gradients))


def _variances(tensors: Sequence[Tensor]) -> tuple[float, ...]:
    return tuple(each.detach().double().var().item() for each in tensors)


def _check(name: str, value: object) -> None:
    if isinstance(value, Tensor) and value.is_floating_point():
        return
    got = value.dtype if isinstance(value, Tensor) else type(value).__name__
    raise BadType(
        "{name}: expected a floating point tensor, got {got}; an attention that returns "
        "weights too is wrapped as lambda x: attention(x, x, x)[0]",
        name=name,
        got=got,
    )
