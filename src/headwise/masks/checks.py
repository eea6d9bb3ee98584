"""The checks that several masks make of their arguments."""

from collections.abc import Iterable

import torch

from headwise.errors import BadType
from headwise.shapes import whole

__all__ = ["INTEGERS", "integers", "switch", "whole"]

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""The dtypes of a tensor of lengths or numbers."""


def integers(
    mask: str, kind: tuple[str, str], values: object, way_out: tuple[str, str]
) -> list[int]:
    """A list of integers from 0 to `LARGEST`.

    Args:
        mask: who asks.
        kind: what one of them is, in both languages.
        values: the sequence given.
        way_out: what ends the message where one is out of range, in both languages.

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
            f"{mask}: expected a sequence of integer {kind[0]}s or a tensor, got {values!r}; "
            "a single one is written [n]",
            f"{mask}：应为整数{kind[1]}的序列或张量，收到 {values!r}；只有一个时写作 [n]",
        )
    for number in listed:
        whole(mask, (f"a {kind[0]}", kind[1]), number, 0, way_out)
    return listed


def switch(mask: str, argument: str, value: object, way_out: tuple[str, str]) -> None:
    """Refuse what is neither True nor False.

    Raises:
        BadType: if it is neither.
    """
    if not isinstance(value, bool):
        raise BadType(
            f"{mask}: {argument} must be True or False, got {value!r}; {way_out[0]}",
            f"{mask}：{argument} 必须是 True 或 False，收到 {value!r}；{way_out[1]}",
        )
