"""The checks that several masks make of their arguments."""

from collections.abc import Iterable

import torch

from headwise.errors import BadType
from headwise.lang import Text
from headwise.shapes import check_integer

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
