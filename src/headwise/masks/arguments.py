"""Checks of the arguments of masks, and what a mask is resolved against."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.errors import BadType
from headwise.lang import Text
from headwise.shapes import AttentionShape, check_integer

__all__ = ["INTEGERS", "check_boolean", "check_integer", "check_integers"]

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""The dtypes of a tensor of lengths or numbers."""


def check_integers(mask: str, kind: Text, values: object, way_out: Text) -> list[int]:
    """A list of integers from 0 to `LARGEST`.

    Args:
        mask: who asks.
        kind: what one of them is, such as "length".
        values: the sequence given.
        way_out: the hint where one is out of range.

    Raises:
        BadType: if it is no sequence, or one of them no integer.
        BadValue: if one is negative or too large.
    """
    listed = list(values) if isinstance(values, Iterable) else None
    if (
        listed is None
        or isinstance(values, bytes | bytearray)
        or any(type(number) is not int for number in listed)
    ):
        raise BadType(
            "{mask}: expected a sequence of integer {kind}s or a tensor, got {values!r}; a single "
            "one is written [n]",
            mask=mask,
            kind=kind,
            values=values,
        )
    for number in listed:
        check_integer(mask, Text("a {kind}", kind=kind), number, 0, way_out)
    return listed


def check_boolean(mask: str, argument: str, value: object, way_out: Text) -> None:
    """Refuse what is neither True nor False.

    Raises:
        BadType: if it is neither.
    """
    if not isinstance(value, bool):
        raise BadType(
            "{mask}: {argument} must be True or False, got {value!r}; {way_out}",
            mask=mask,
            argument=argument,
            value=value,
            way_out=way_out,
        )


@dataclass(frozen=True, eq=False)
class Content:
    """What a mask that depends on q and k is resolved against.

    Attributes:
        q: (B, H, Lq, D) and ``k`` (B, G, Lk, D), as they meet in the scores.
        shape: the outer shape.
        real: (B, Lk), False on keys that the masks around hide from every query; None if none is.
    """

    q: Tensor
    k: Tensor
    shape: AttentionShape
    real: Tensor | None = None

    def counts(self) -> list[int]:
        """How many keys of each sample are not hidden."""
        if self.real is None:
            return [self.shape.keys] * self.shape.batch
        return [int(count) for count in self.real.sum(-1).tolist()]

    def samples(self, chosen: list[int]) -> "Content":
        """Some samples of the batch."""
        real = None if self.real is None else self.real[chosen]
        shape = replace(self.shape, batch=len(chosen))
        return Content(self.q[chosen], self.k[chosen], shape, real)


def needs_operator() -> bool:
    """Whether `torch.compile` traces, or `torch.func` maps or differentiates, what runs now.

    The one cannot follow a generator that is made on the way, the other takes what is drawn from it
    for randomness that its caller did not ask for. An operator is one node for both.
    """
    if torch.compiler.is_dynamo_compiling():
        return True
    active: Callable[[], bool] | None = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is not None and active()
