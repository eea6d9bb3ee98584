"""What a module is given: checked, and turned to (B, L, E) and back."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.lang import Text


def batch_first(x: Tensor, is_first: bool) -> Tensor:
    """x as (B, L, ·), from (L, ·), (B, L, ·) or (L, B, ·)."""
    if x.dim() == 2:
        return x[None]
    return x if is_first else x.transpose(0, 1)


def as_given(y: Tensor, given: Tensor, is_first: bool) -> Tensor:
    """y (B, L, ·) in the layout of the tensor that was given."""
    if given.dim() == 2:
        return y[0]
    return y if is_first else y.transpose(0, 1)


def check_inputs(inputs: Mapping[str, Tensor], sizes: Mapping[str, int], is_first: bool) -> None:
    """Refuse inputs that do not fit the module or each other.

    Args:
        inputs: query, key and value by name.
        sizes: the last axis of each by the argument that set it: embed_dim, kdim, vdim.
        is_first: whether the module reads (B, L, E).

    Raises:
        BadType: if one is no tensor.
        BadValue: if a shape does not fit.
    """
    for (name, x), (argument, size) in zip(inputs.items(), sizes.items(), strict=True):
        _check_one(name, x, argument, size)
    if len({x.dim() for x in inputs.values()}) > 1:
        raise _disagree(Text("the number of axes"), inputs)
    query, key, value = (batch_first(x, is_first) for x in inputs.values())
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        layout = f"{'(B, L, E)' if is_first else '(L, B, E)'} with batch_first={is_first}"
        raise _disagree(Text("the batch size B, read as {layout},", layout=layout), inputs)
    if key.shape[1] != value.shape[1]:
        raise _disagree(Text("the length S of key and value"), inputs)


def check_dtypes(inputs: Mapping[str, Tensor], projections: Mapping[str, nn.Module]) -> None:
    """Refuse inputs in another dtype than the weights, unless autocast is on.

    Raises:
        BadValue: if an input's dtype is not that of its projection.
    """
    for (name, x), (owner, projection) in zip(inputs.items(), projections.items(), strict=True):
        if type(projection) is not nn.Linear or torch.is_autocast_enabled(x.device.type):
            continue
        kind = projection.weight.dtype
        if x.dtype != kind:
            raise BadValue(
                "{name}: expected {kind}, the dtype of {owner}.weight, got {x_dtype}; "
                "use {name}.to({kind}) or module.to({x_dtype})",
                name=name,
                kind=kind,
                owner=owner,
                x_dtype=x.dtype,
            )


def _check_one(name: str, x: Tensor, argument: str, size: int) -> None:
    if not isinstance(x, Tensor):
        raise BadType("{name}: expected a tensor, got {x_type}", name=name, x_type=type(x).__name__)
    if x.is_nested:
        raise BadValue(
            "{name}: expected a dense tensor, got a nested one; use "
            "x.to_padded_tensor(0.0) with key_padding_mask",
            name=name,
        )
    if x.dim() not in (2, 3):
        raise BadValue(
            "{name}: expected two axes (length, size) or three with a batch, got {x_shape}",
            name=name,
            x_shape=tuple(x.shape),
        )
    if x.shape[-1] != size:
        raise BadValue(
            "{name}: expected a last axis of size {argument}={size}, got {x_shape}; make "
            "the module with {argument}={x_shape_2} or project the input first",
            name=name,
            argument=argument,
            size=size,
            x_shape=tuple(x.shape),
            x_shape_2=x.shape[-1],
        )


def _disagree(size: Text, inputs: Mapping[str, Tensor]) -> BadValue:
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items())
    return BadValue(
        "query, key, value: {size} must agree, got {shapes}; a batch is either in all three or in "
        "none, and batch_first says which axis it is",
        size=size,
        shapes=shapes,
    )
