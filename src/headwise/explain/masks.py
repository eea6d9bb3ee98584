"""The mask and the bias of the command line."""

import torch
from torch import Tensor

from headwise.document.plain import clean
from headwise.errors import BadValue
from headwise.explain.inputs import TYPES, Source, read_array
from headwise.lang import Text
from headwise.masks import Mask, causal, from_tensor, full, window
from headwise.masks.patterns.from_tensor import Layout

_Sizes = tuple[tuple[int, int], tuple[int, int, int]]


def mask_of(word: str | None, bias: str | None, heads: int, length: int) -> Mask:
    """The mask a word names, together with a bias from a file.

    Args:
        word: ``full``, ``causal``, ``window:L,R``, or a file of 0 and 1, where 1 may attend;
            None means full.
        bias: a file of numbers that are added to the scaled scores, (L, L) or (H, L, L); -inf
            blocks a pair.
        heads: H, for the size of the files.
        length: L, for the size of the files.

    Raises:
        BadFile: if a file cannot be used.
        BadValue: if the word is unknown.
    """
    sizes = ((length, length), (heads, length, length))
    mask = full() if word is None else _named(word, sizes)
    return mask if bias is None else mask & _bias(bias, sizes)


def _named(word: str, sizes: _Sizes) -> Mask:
    if word == "full":
        return full()
    if word == "causal":
        return causal()
    if word.startswith("window:"):
        return _window(word.removeprefix("window:"))
    if Source.of("mask", word).path.suffix.lower() in TYPES:
        return _from_file(word, sizes)
    raise BadValue(
        "mask: unknown {word!r}; expected full, causal, window:LEFT,RIGHT, or a file "
        "({types}) of 0 and 1",
        word=clean(word),
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


def _from_file(word: str, sizes: _Sizes) -> Mask:
    values = _sized(word, "mask", sizes)
    if not bool(((values == 0) | (values == 1)).all()):
        raise Source.of("mask", word).bad(
            Text("expected only 0 (blocked) and 1 (may attend); numbers to be added are a --bias")
        )
    return from_tensor(values.bool(), _layout(values))


def _bias(word: str, sizes: _Sizes) -> Mask:
    values = _sized(word, "bias", sizes)
    if bool((values == torch.inf).any()):
        raise Source.of("bias", word).bad(
            Text("expected numbers below infinity, got +inf; -inf blocks a pair")
        )
    try:
        return from_tensor(values, _layout(values))
    except BadValue as error:
        raise Source.of("bias", word).bad(error.text.en, error.text.zh) from error


def _sized(word: str, argument: str, sizes: _Sizes) -> Tensor:
    values = read_array(word, argument, (2, 3), finite=False).values
    if tuple(values.shape) not in sizes:
        raise Source.of(argument, word).bad(
            Text(
                "expected shape {sizes_0}, or {sizes_1} with one matrix a head, got "
                "{values_shape}; rows are queries, columns are keys",
                sizes_0=sizes[0],
                sizes_1=sizes[1],
                values_shape=tuple(values.shape),
            )
        )
    return values


def _layout(values: Tensor) -> Layout:
    return "q k" if values.dim() == 2 else "h q k"
