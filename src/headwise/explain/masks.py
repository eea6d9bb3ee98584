"""The mask and the bias of the command line."""

import torch
from torch import Tensor

from headwise.document.plain import clean
from headwise.errors import BadValue
from headwise.explain.inputs import TYPES, Source, read_array
from headwise.masks import Mask, causal, from_tensor, full, window
from headwise.masks.layout import Layout


def mask_of(word: str | None, bias: str | None) -> Mask:
    """The mask a word names, together with a bias from a file.

    Args:
        word: ``full``, ``causal``, ``window:L,R``, or a file of 0 and 1, where 1 may attend;
            None means full.
        bias: a file of numbers that are added to the scaled scores, (L, L) or (H, L, L); -inf
            blocks a pair.

    Raises:
        BadFile: if a file cannot be used.
        BadValue: if the word is unknown.
    """
    mask = full() if word is None else _named(word)
    return mask if bias is None else mask & _bias(bias)


def _named(word: str) -> Mask:
    if word == "full":
        return full()
    if word == "causal":
        return causal()
    if word.startswith("window:"):
        return _window(word.removeprefix("window:"))
    if Source.of("mask", word).path.suffix.lower() in TYPES:
        return _from_file(word)
    raise BadValue(
        f"mask: unknown {clean(word)!r}; expected full, causal, window:LEFT,RIGHT, or a file "
        f"({', '.join(TYPES)}) of 0 and 1",
        f"mask：未知的 {clean(word)!r}；应为 full、causal、window:左,右，"
        f"或含 0 和 1 的文件（{', '.join(TYPES)}）",
    )


def _window(sides: str) -> Mask:
    try:
        left, right = (int(side) for side in sides.split(","))
    except ValueError as error:
        raise BadValue(
            f"mask: expected two whole numbers after 'window:', got {clean(sides)!r}; "
            "window:3,0 sees three keys behind and its own",
            f"mask：'window:' 后应为两个整数，收到 {clean(sides)!r}；"
            "window:3,0 表示看前面三个键和自己",
        ) from error
    return window(left, right)


def _from_file(word: str) -> Mask:
    values = read_array(word, "mask", (2, 3)).values
    if not bool(((values == 0) | (values == 1)).all()):
        raise Source.of("mask", word).bad(
            "expected only 0 (blocked) and 1 (may attend); numbers to be added are a --bias",
            "只应含 0（不可见）和 1（可见）；要加到得分上的数请用 --bias",
        )
    return from_tensor(values.bool(), _layout(values))


def _bias(word: str) -> Mask:
    values = read_array(word, "bias", (2, 3), finite=False).values
    if bool((values == torch.inf).any()):
        raise Source.of("bias", word).bad(
            "expected numbers below infinity, got +inf; -inf blocks a pair",
            "应为小于无穷的数，收到 +inf；-inf 表示不可见",
        )
    try:
        return from_tensor(values, _layout(values))
    except BadValue as error:
        raise Source.of("bias", word).bad(error.text.en, error.text.zh) from error


def _layout(values: Tensor) -> Layout:
    return "q k" if values.dim() == 2 else "h q k"
