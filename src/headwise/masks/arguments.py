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
"""The allowed dtypes of a tensor of lengths or document numbers."""


def check_integers(
    mask: str, kind: Text, values: object, way_out: Text, least: int = 0
) -> list[int]:
    """Return the values as integers from ``least``; ``kind`` is a noun such as "length"."""
    listed = list(values) if isinstance(values, Iterable) else None
    if (
        listed is None
        or isinstance(values, bytes | bytearray)
        or any(isinstance(number, bool) or not isinstance(number, Integral) for number in listed)
    ):
        raise BadType(
            "{mask}: expected a sequence of integer {kind}s or a tensor, got {values!r}; write "
            "a single value as [n]",
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
    k: Tensor  # (B, G, Lk, D), after the rotation too
    shape: AttentionShape
    real: Tensor | None = None  # (B, Lk), False on keys that other masks hide; or None

    def counts(self) -> list[int]:
        """Return the number of keys of each sample that are not hidden."""
        if self.real is None:
            return [self.shape.keys] * self.shape.batch
        return [int(count) for count in self.real.sum(-1).tolist()]

    def samples(self, chosen: list[int]) -> "Content":
        real = None if self.real is None else self.real[chosen]
        shape = replace(self.shape, batch=len(chosen))
        return Content(self.q[chosen], self.k[chosen], shape, real)


def needs_operator() -> bool:
    """Return whether `torch.compile`, a `torch.func` transform or a `FakeTensorMode` is active.

    `torch.compile` cannot trace a new random generator, `torch.func` would treat its numbers as
    randomness of the caller's function, and a `FakeTensorMode` has no numbers. For all of them, a
    custom operator is one node.
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
