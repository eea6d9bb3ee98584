"""A mask or a position as numbers and tensors, and back: what an operator can be handed."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, get_args

import torch
from torch import Tensor

from headwise.engines.dropout import Keep
from headwise.errors import BadValue
from headwise.masks import Mask
from headwise.masks.mask import And, Not, Or
from headwise.masks.patterns.appended import Appended
from headwise.masks.patterns.block_sparse import BlockSparse
from headwise.masks.patterns.causal import Causal, Full
from headwise.masks.patterns.documents import Documents
from headwise.masks.patterns.from_tensor import FromTensor, Layout
from headwise.masks.patterns.global_tokens import GlobalTokens
from headwise.masks.patterns.lsh import Hashed
from headwise.masks.patterns.padding import Padding
from headwise.masks.patterns.per_head import PerHead
from headwise.masks.patterns.sparse_transformer import Fixed, Modular
from headwise.masks.patterns.window import Dilated, Window
from headwise.positions import ALiBi, Position, Shaw, Stage, T5Bias, TransformerXL

MASKS: tuple[type[Mask], ...] = (
    And,
    Appended,
    BlockSparse,
    Causal,
    Dilated,
    Documents,
    Modular,
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

CLASSES: tuple[type[Mask], ...] = (*MASKS, Keep)
"""Those, and what dropout leaves."""

POSITIONS: tuple[type[Position], ...] = (ALiBi, Shaw, T5Bias, TransformerXL)
"""Every class of position that acts on the scores or the values."""

HELD: tuple[tuple[str, ...], ...] = (
    ("num_heads",),
    ("max_distance", "stages", "table", "value_table"),
    ("num_heads", "num_buckets", "max_distance", "bidirectional", "table"),
    ("embed_dim", "u", "v", "projection"),
)
"""What one of each is made of."""

WORDS, STAGES = get_args(Layout), tuple(Stage)
NONE, TRUTH, NUMBER, WORD, TENSOR, SCALAR, MANY, MASK, POSITION, STAGE = range(10)


def known(value: Mask | Position) -> bool:
    """Whether `encode` can write it: it and its parts are of headwise's own classes."""
    if isinstance(value, Position):
        return type(value) in POSITIONS
    if type(value) not in CLASSES:
        return False
    values = [getattr(value, field.name) for field in fields(value)]  # type: ignore[arg-type]
    parts = [one for each in values for one in (each if isinstance(each, tuple) else (each,))]
    return all(known(one) for one in parts if isinstance(one, Mask))


def encode(*values: Any) -> tuple[list[int], list[Tensor]]:
    """Values as numbers, and the tensors that they hold, in the order they are met.

    Args:
        values: masks, positions, tensors, None, and tuples of them. A float is a tensor without
            axes, and such a tensor is a number that is known only when the operator runs.

    Raises:
        BadValue: if a mask or a position is of no class in `CLASSES` and `POSITIONS`.
    """
    numbers: list[int] = []
    tensors: list[Tensor] = []
    for value in values:
        _write(value, numbers, tensors)
    return numbers, tensors


def decode(numbers: Sequence[int], tensors: Sequence[Tensor]) -> tuple[Mask, list[Any]]:
    """The mask that `encode` wrote first, and what else it wrote."""
    left, held = iter(numbers), iter(tensors)
    found = [_read(kind, left, held) for kind in left]
    mask, *others = found or [None]
    if not isinstance(mask, Mask):
        raise BadValue(
            "numbers: expected those of a mask, got {mask!r}; use encode(mask)", mask=mask
        )
    return mask, others


def _write(value: Any, numbers: list[int], tensors: list[Tensor]) -> None:
    if isinstance(value, Mask | Position):
        _write_parts(value, numbers, tensors)
    elif isinstance(value, tuple):
        numbers += [MANY, len(value)]
        for one in value:
            _write(one, numbers, tensors)
    elif isinstance(value, frozenset):
        numbers += [STAGE, sum(1 << n for n, stage in enumerate(STAGES) if stage in value)]
    elif isinstance(value, Tensor | float):
        whole = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
        numbers.append(TENSOR if whole.dim() else SCALAR)
        tensors.append(whole)
    elif value is None:
        numbers.append(NONE)
    elif isinstance(value, str):
        numbers += [WORD, WORDS.index(value)]
    else:
        numbers += [TRUTH if isinstance(value, bool) else NUMBER, int(value)]


def _write_parts(value: Mask | Position, numbers: list[int], tensors: list[Tensor]) -> None:
    if isinstance(value, Position) and type(value) in POSITIONS:
        at = POSITIONS.index(type(value))
        kind, names = POSITION, HELD[at]
    elif isinstance(value, Mask) and type(value) in CLASSES:
        at = CLASSES.index(type(value))
        kind, names = MASK, tuple(field.name for field in fields(value))  # type: ignore[arg-type]
    else:
        word = "mask" if isinstance(value, Mask) else "position"
        raise BadValue(
            "{word}: {value_type} is none of headwise's own classes and cannot be "
            "written as numbers; use those in headwise.{word}s",
            word=word,
            value_type=type(value).__name__,
        )
    numbers += [kind, at]
    for name in names:
        _write(getattr(value, name), numbers, tensors)


def _read(kind: int, numbers: Iterator[int], tensors: Iterator[Tensor]) -> Any:
    if kind == NONE:
        return None
    if kind in (TENSOR, SCALAR):
        tensor = next(tensors)
        return tensor if kind == TENSOR else tensor.item()
    count = next(numbers)
    if kind == MASK:
        made = CLASSES[count]
        each = (next(numbers) for _ in fields(made))  # type: ignore[arg-type]
        return made(*(_read(one, numbers, tensors) for one in each))
    if kind == POSITION:
        return _read_position(count, numbers, tensors)
    if kind == MANY:
        return tuple(_read(next(numbers), numbers, tensors) for _ in range(count))
    if kind == STAGE:
        return frozenset(stage for n, stage in enumerate(STAGES) if count >> n & 1)
    return {TRUTH: bool(count), NUMBER: count}.get(kind) if kind != WORD else WORDS[count]


def _read_position(at: int, numbers: Iterator[int], tensors: Iterator[Tensor]) -> Position:
    """One that holds the very tensors given: nothing is drawn, and autograd knows them."""
    made = POSITIONS[at].__new__(POSITIONS[at])
    Position.__init__(made)
    for name in HELD[at]:
        setattr(made, name, _read(next(numbers), numbers, tensors))
    return made
