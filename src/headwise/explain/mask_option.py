"""The options ``--mask`` and ``--bias``."""

import torch
from torch import Tensor

from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue
from headwise.explain.array_files import TYPES, InputFile, read_array
from headwise.masks import Mask, causal, from_tensor, full, window
from headwise.masks.patterns.from_tensor import Layout

_Shapes = tuple[tuple[int, int], tuple[int, int, int]]


def parse_mask(value: str | None, bias: str | None, heads: int, length: int) -> Mask:
    """Build a mask from the value of ``--mask`` and of ``--bias``.

    Args:
        value: ``full``, ``causal``, ``window:L,R``, or a file of 0 and 1, where 1 may attend;
            None means full.
        bias: a file of numbers that are added to the scaled scores, (L, L) or (H, L, L); -inf
            blocks a pair.
        heads: H.
        length: L.

    Raises:
        BadFile: if a file cannot be used.
        BadValue: if the value is unknown.
    """
    shapes = ((length, length), (heads, length, length))
    mask = full() if value is None else _parse(value, shapes)
    if bias is None:
        return mask
    file = InputFile.parse("bias", bias)
    with file.errors():
        return mask & _bias(file, shapes)


def _parse(value: str, shapes: _Shapes) -> Mask:
    if value == "full":
        return full()
    if value == "causal":
        return causal()
    if value.startswith("window:"):
        return _window(value.removeprefix("window:"))
    file = InputFile.parse("mask", value)
    if file.suffix in TYPES:
        with file.errors():
            return _from_file(file, shapes)
    raise BadValue(
        "mask: unknown {value!r}; expected full, causal, window:LEFT,RIGHT, or a file "
        "({types}) of 0 and 1",
        value=clean(value),
        types=", ".join(TYPES),
    )


def _window(sides: str) -> Mask:
    try:
        left, right = (int(side) for side in sides.split(","))
    except ValueError as error:
        raise BadValue(
            "mask: expected two whole numbers after 'window:', got {sides!r}; window:3,0 "
            "sees three keys behind and its own",
            sides=clean(sides),
        ) from error
    return window(left, right)


def _from_file(file: InputFile, shapes: _Shapes) -> Mask:
    values = _read(file, shapes)
    if not bool(((values == 0) | (values == 1)).all()):
        raise BadFile(
            "expected only 0 (blocked) and 1 (may attend); numbers to be added are a --bias"
        )
    return from_tensor(values.bool(), _layout(values))


def _bias(file: InputFile, shapes: _Shapes) -> Mask:
    values = _read(file, shapes)
    if bool((values == torch.inf).any()):
        raise BadFile("expected numbers below infinity, got +inf; -inf blocks a pair")
    try:
        return from_tensor(values, _layout(values))
    except BadValue as error:
        raise BadFile(error.text) from error


def _read(file: InputFile, shapes: _Shapes) -> Tensor:
    values = read_array(file, (2, 3), finite=False).values
    if tuple(values.shape) not in shapes:
        raise BadFile(
            "expected shape {shape}, or {shape_per_head} with one matrix a head, got "
            "{got}; rows are queries, columns are keys",
            shape=shapes[0],
            shape_per_head=shapes[1],
            got=tuple(values.shape),
        )
    return values


def _layout(values: Tensor) -> Layout:
    return "q k" if values.dim() == 2 else "h q k"
