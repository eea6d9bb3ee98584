"""Tensors as NumPy's arrays, for functions written for those, and back."""

from collections.abc import Mapping

import torch
from torch import Tensor


def arrays_of(arguments: Mapping[str, object]) -> dict[str, object]:
    """Copies of the tensors among some arguments as arrays; the rest as it is.

    Raises:
        TypeError: if NumPy has no such dtype, such as bfloat16.
    """
    return {
        name: value.detach().clone().numpy() if isinstance(value, Tensor) else value
        for name, value in arguments.items()
    }


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    """The tensors whose arrays hold other numbers than they did."""
    return tuple(
        name
        for name, value in before.items()
        if isinstance(value, Tensor) and not torch.equal(value, torch.as_tensor(after[name]))
    )


def tensors_of(result: object, dtype: torch.dtype) -> object:
    """What came back with every array as a tensor; numbers that NumPy widened are rounded."""
    if isinstance(result, Mapping):
        result = tuple(result.values())
    if isinstance(result, tuple | list):
        return tuple(tensors_of(each, dtype) for each in result)
    if type(result).__module__.partition(".")[0] != "numpy":
        return result
    return torch.as_tensor(result).to(dtype)
