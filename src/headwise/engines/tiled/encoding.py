"""A mask as numbers and tensors, and back: what an operator of PyTorch can be handed."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, get_args

from torch import Tensor

from headwise.errors import BadValue
from headwise.masks import Mask
from headwise.masks.appended import Appended
from headwise.masks.base import And, Not, Or
from headwise.masks.block_sparse import BlockSparse
from headwise.masks.causal import Causal
from headwise.masks.dilated import Dilated
from headwise.masks.documents import Documents
from headwise.masks.every import Every
from headwise.masks.fixed import Fixed
from headwise.masks.from_tensor import FromTensor
from headwise.masks.full import Full
from headwise.masks.global_tokens import GlobalTokens
from headwise.masks.layout import Layout
from headwise.masks.lsh import Hashed
from headwise.masks.padding import Padding
from headwise.masks.per_head import PerHead
from headwise.masks.window import Window

MASKS: tuple[type[Mask], ...] = (
    And,
    Appended,
    BlockSparse,
    Causal,
    Dilated,
    Documents,
    Every,
    Fixed,
    FromTensor,
    Full,
    GlobalTokens,
    Hashed,
    Not,
    Or,
    Padding,
    PerHead,
    Window,
)
"""Every class of mask that `Mask.resolve` gives."""

WORDS = get_args(Layout)
NONE, TRUTH, NUMBER, WORD, TENSOR, MANY, MASK = range(7)


def known(mask: Mask) -> bool:
    """Whether `encode` can write the mask: it and its parts are of headwise's own classes."""
    if type(mask) not in MASKS:
        return False
    values = [getattr(mask, field.name) for field in fields(mask)]  # type: ignore[arg-type]
    parts = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    return all(known(one) for one in parts if isinstance(one, Mask))


def encode(mask: Mask) -> tuple[list[int], list[Tensor]]:
    """The mask as numbers, and the tensors that it holds, in the order they are met.

    Raises:
        BadValue: if it is of no class in `MASKS`.
    """
    numbers: list[int] = []
    tensors: list[Tensor] = []
    _write(mask, numbers, tensors)
    return numbers, tensors


def decode(numbers: Sequence[int], tensors: Sequence[Tensor]) -> Mask:
    """The mask that `encode` wrote."""
    mask = _read(iter(numbers), iter(tensors))
    if not isinstance(mask, Mask):
        raise BadValue(
            f"numbers: expected those of a mask, got {mask!r}; use encode(mask)",
            f"numbers：应为一个掩码的编码，收到 {mask!r}；请用 encode(mask)",
        )
    return mask


def _write(value: Any, numbers: list[int], tensors: list[Tensor]) -> None:
    if isinstance(value, Mask):
        if type(value) not in MASKS:
            raise BadValue(
                f"mask: {type(value).__name__} is none of headwise's own classes and cannot be "
                "written as numbers; compose it of those in headwise.masks",
                f"mask：{type(value).__name__} 不是 headwise 自带的类，无法编码；"
                "请用 headwise.masks 中的掩码组合",
            )
        numbers += [MASK, MASKS.index(type(value))]
        for field in fields(value):  # type: ignore[arg-type]
            _write(getattr(value, field.name), numbers, tensors)
    elif isinstance(value, tuple):
        numbers += [MANY, len(value)]
        for one in value:
            _write(one, numbers, tensors)
    elif isinstance(value, Tensor):
        numbers.append(TENSOR)
        tensors.append(value)
    elif value is None:
        numbers.append(NONE)
    elif isinstance(value, str):
        numbers += [WORD, WORDS.index(value)]
    else:
        numbers += [TRUTH if isinstance(value, bool) else NUMBER, int(value)]


def _read(numbers: Iterator[int], tensors: Iterator[Tensor]) -> Any:
    kind = next(numbers)
    if kind == NONE:
        return None
    if kind == TENSOR:
        return next(tensors)
    count = next(numbers)
    if kind == MASK:
        made = MASKS[count]
        return made(*(_read(numbers, tensors) for _ in fields(made)))  # type: ignore[arg-type]
    if kind == MANY:
        return tuple(_read(numbers, tensors) for _ in range(count))
    return {TRUTH: bool(count), NUMBER: count}.get(kind) if kind != WORD else WORDS[count]
