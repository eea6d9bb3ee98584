"""Slice rows and columns of projections in place."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headwise.nn.projections import features, is_transposed


class Shared(nn.Linear):
    """A projection to key/value heads that repeats some of its heads.

    Its parameters are those of the distinct heads; nothing is stored twice.

    Args:
        of: the projection, G heads of ``size``.
        order: for each output head, its index among the G.
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
        """(..., in) to (..., len(order) · size)."""
        heads = torch.unflatten(super().forward(x), -1, (-1, self.size))
        return heads.index_select(-2, self.order).flatten(-2)

    def extra_repr(self) -> str:
        """The sizes and the order of the heads."""
        return f"{super().extra_repr()}, order={self.order.tolist()}"


def rows_of(heads: Sequence[int], size: int) -> Tensor:
    """The rows of heads in a matrix with the rows of each head in sequence.

    Example:
        >>> rows_of([0, 2], 2).tolist()
        [0, 1, 4, 5]
    """
    return (torch.tensor(heads)[:, None] * size + torch.arange(size)).flatten()


def keep_outputs(projection: nn.Module, rows: Tensor) -> None:
    """Keep some outputs of a projection."""
    _cut(projection, "weight", 1 if is_transposed(projection) else 0, rows)
    if getattr(projection, "bias", None) is not None:
        _cut(projection, "bias", 0, rows)
    _sizes(projection)


def shown(projection: nn.Linear, order: Sequence[int], size: int) -> nn.Linear:
    """The projection with its heads repeated in an order; shares its parameters."""
    if list(order) != list(range(len(order))):
        return Shared(projection, order, size)
    if not isinstance(projection, Shared):
        return projection
    plain = nn.Linear(projection.in_features, projection.out_features, False, "meta")
    plain.weight, plain.bias = projection.weight, projection.bias
    return plain.train(projection.training)


def keep_inputs(projection: nn.Module, columns: Tensor) -> None:
    """Keep some inputs of a projection."""
    _cut(projection, "weight", 0 if is_transposed(projection) else 1, columns)
    _sizes(projection)


def keep(module: nn.Module, name: str, axis: int, index: Tensor) -> None:
    """Slice a parameter, if there is one of that name."""
    if getattr(module, name, None) is not None:
        _cut(module, name, axis, index)


def _cut(module: nn.Module, name: str, axis: int, index: Tensor) -> None:
    whole: nn.Parameter = getattr(module, name)
    part = whole.detach().index_select(axis, index.to(whole.device)).contiguous()
    setattr(module, name, nn.Parameter(part, requires_grad=whole.requires_grad))


def _sizes(projection: nn.Module) -> None:
    """Update the size attributes of a projection."""
    given, gives = features(projection) or (0, 0)
    names = ("nx", "nf") if is_transposed(projection) else ("in_features", "out_features")
    for name, number in zip(names, (given, gives), strict=True):
        setattr(projection, name, number)
