"""Checks of the arguments of masks, and the queries and keys to which a mask is bound."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from torch import Tensor

from headwise.errors import BadType
from headwise.lang import Text
from headwise.shapes import AttentionShape, check_integer

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""The dtypes of a tensor of lengths or document numbers."""


def check_integers(
    mask: str, kind: Text, values: object, way_out: Text, least: int = 0
) -> list[int]:
    """The values as a list of integers up to `LARGEST`; ``kind`` is a noun such as "length"."""
    listed = list(values) if isinstance(values, Iterable) else None
    if (
        listed is None
        or isinstance(values, bytes | bytearray)
        or any(isinstance(number, bool) or not isinstance(number, Integral) for number in listed)
    ):
        raise BadType(
            "{mask}: expected a sequence of integer {kind}s or a tensor, got {values!r}; a single "
            "one is written [n]",
            mask=mask,
            kind=kind,
            values=values,
        )
    what = Text("a {kind}", kind=kind)
    return [check_integer(mask, what, number, least, way_out) for number in listed]


@dataclass(frozen=True, eq=False)
class Content:
    """The queries and keys of a call, to which a content-dependent mask is bound."""

    q: Tensor  # (B, H, Lq, D), after the rotation of a rotary position
    k: Tensor  # (B, G, Lk, D), likewise
    shape: AttentionShape
    real: Tensor | None = None  # (B, Lk), False on keys that other masks hide; None if none is

    def counts(self) -> list[int]:
        """The number of keys of each sample that are not hidden."""
        if self.real is None:
            return [self.shape.keys] * self.shape.batch
        return [int(count) for count in self.real.sum(-1).tolist()]

    def samples(self, chosen: list[int]) -> "Content":
        real = None if self.real is None else self.real[chosen]
        shape = replace(self.shape, batch=len(chosen))
        return Content(self.q[chosen], self.k[chosen], shape, real)


def needs_operator() -> bool:
    """Whether `torch.compile`, a transform of `torch.func` or a `FakeTensorMode` is active.

    The first cannot trace a new random generator; the second would treat numbers drawn from it as
    randomness of the caller's function; the third has no numbers. A custom operator is one node for
    all.
    """
    if torch.compiler.is_dynamo_compiling() or fake_mode():
        return True
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is not None and bool(active())


def fake_mode() -> bool:
    """Whether a `FakeTensorMode` is active, in which tensors hold no numbers."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def without_numbers(tensor: Tensor) -> bool:
    """Whether a tensor holds no numbers: on the device "meta", or a fake one."""
    return tensor.is_meta or type(tensor).__name__ == "FakeTensor" or fake_mode()
