"""A mask or a position as integers and tensors, and back: the arguments of a custom operator.

No class has to be registered. A mask is encoded as its class and its dataclass fields; a position
as its class, attributes, parameters, buffers and submodules.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.masks import Mask
from headwise.positions import Stage

STAGES = tuple(Stage)
MODULE_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}
"""The attributes that every module has."""

GROUPS = ("_parameters", "_buffers", "_modules")
"""The dictionaries of a module's tensors and submodules; decoding restores each to its own."""

NONE, TRUTH, INTEGER, WORD, TENSOR, SCALAR, TUPLE, MASK, MODULE, STAGE = range(10)


def encodable(value: Any) -> bool:
    """Return whether `encode` can encode a value: all its parts have a supported type."""
    if isinstance(value, Mask):
        names = getattr(value, "__dataclass_fields__", None)
        return names is not None and all(encodable(getattr(value, name)) for name in names)
    if isinstance(value, nn.Module):
        hooks = value._forward_hooks or value._forward_pre_hooks
        return not hooks and all(encodable(part) for _, _, part in _module_parts(value))
    if isinstance(value, tuple | frozenset):
        return all(isinstance(one, Stage) or encodable(one) for one in value)
    return value is None or isinstance(value, Tensor | str | int | float | torch.SymInt)


def encode(*values: Any) -> tuple[list[int], list[Tensor]]:
    """Encode masks, positions, tensors, None, and tuples of them as integers and tensors.

    A float becomes a tensor without axes, since its value may be known only when the operator runs.

    Raises:
        BadValue: if a part has a type that `encodable` rejects.
    """
    numbers: list[int] = []
    tensors: list[Tensor] = []
    for value in values:
        _write(value, numbers, tensors)
    return numbers, tensors


def decode(numbers: Sequence[int], tensors: Sequence[Tensor]) -> tuple[Mask, list[Any]]:
    """Return the mask that `encode` wrote first, and the other values."""
    numbers_left, tensors_left = iter(numbers), iter(tensors)
    values = [_read(kind, numbers_left, tensors_left) for kind in numbers_left]
    mask, *others = values or [None]
    if isinstance(mask, Mask):
        return mask, others
    raise BadValue("numbers: expected an encoded mask, got {mask!r}; use encode(mask)", mask=mask)


def _write(value: Any, numbers: list[int], tensors: list[Tensor]) -> None:
    if isinstance(value, Mask):
        names = getattr(value, "__dataclass_fields__", None)
        if names is None:
            raise _not_encodable("mask", value)
        numbers += [MASK, *_word(_class_name(type(value))), len(names)]
        for name in names:
            _write(getattr(value, name), numbers, tensors)
    elif isinstance(value, nn.Module):
        parts = _module_parts(value)
        numbers += [MODULE, *_word(_class_name(type(value))), len(parts)]
        for group, name, part in parts:
            numbers += [group, *_word(name)]
            if isinstance(part, Tensor):  # a tensor without axes stays a tensor too
                numbers.append(TENSOR)
                tensors.append(part)
            else:
                _write(part, numbers, tensors)
    elif isinstance(value, tuple):
        numbers += [TUPLE, len(value)]
        for one in value:
            _write(one, numbers, tensors)
    elif isinstance(value, Tensor | float):
        tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
        numbers.append(TENSOR if tensor.dim() else SCALAR)
        tensors.append(tensor)
    else:
        numbers += _plain(value)


def _plain(value: Any) -> list[int]:
    """Encode a value that has neither parts nor tensors."""
    if value is None:
        return [NONE]
    if isinstance(value, str):
        return [WORD, *_word(value)]
    if isinstance(value, frozenset):
        return [STAGE, sum(1 << n for n, stage in enumerate(STAGES) if stage in value)]
    if not isinstance(value, int | torch.SymInt):
        raise _not_encodable("value", value)
    return [TRUTH if isinstance(value, bool) else INTEGER, int(value)]


def _word(text: str) -> list[int]:
    return [len(text), *[ord(letter) for letter in text]]


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _module_parts(module: nn.Module) -> list[tuple[int, str, Any]]:
    """Return group, name and value of a module's attributes, tensors and submodules."""
    own = {name: part for name, part in vars(module).items() if name not in MODULE_ATTRIBUTES}
    groups = (own, *(vars(module)[group] for group in GROUPS))
    return [(n, name, part) for n, parts in enumerate(groups) for name, part in parts.items()]


def _not_encodable(kind: str, value: object) -> BadValue:
    return BadValue(
        "{kind}: {name} cannot be encoded as integers and tensors; a mask must be a dataclass, and "
        "masks and positions may hold only numbers, strings, tensors, tuples, masks and modules",
        kind=kind,
        name=type(value).__name__,
    )


def _read(kind: int, numbers: Iterator[int], tensors: Iterator[Tensor]) -> Any:
    if kind == NONE:
        return None
    if kind in (TENSOR, SCALAR):
        tensor = next(tensors)
        return tensor if kind == TENSOR else tensor.item()
    if kind == WORD:
        return _read_word(numbers)
    if kind == MODULE:
        return _read_module(numbers, tensors)
    mask = _class(_read_word(numbers)) if kind == MASK else None
    count = next(numbers)
    if kind in (MASK, TUPLE):
        parts = tuple(_read(next(numbers), numbers, tensors) for _ in range(count))
        return parts if mask is None else mask(*parts)
    if kind == STAGE:
        return frozenset(stage for n, stage in enumerate(STAGES) if count >> n & 1)
    return bool(count) if kind == TRUTH else count


def _read_word(numbers: Iterator[int]) -> str:
    return "".join(chr(next(numbers)) for _ in range(next(numbers)))


def _read_module(numbers: Iterator[int], tensors: Iterator[Tensor]) -> nn.Module:
    """Build a module from the tensors themselves: no initialisation, and autograd works."""
    kind: Any = _class(_read_word(numbers))
    module: nn.Module = kind.__new__(kind)
    nn.Module.__init__(module)
    groups = (vars(module), *(vars(module)[group] for group in GROUPS))
    for _ in range(next(numbers)):
        group, name = groups[next(numbers)], _read_word(numbers)
        group[name] = _read(next(numbers), numbers, tensors)
    return module


def _class(name: str) -> type:
    """Return the class of a mask or module that is already imported; never import anything."""
    module, _, path = name.partition(":")
    value: Any = sys.modules.get(module)
    for part in path.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, type):  # a class defined inside a function: take the newest
        kinds = (kind for root in (Mask, nn.Module) for kind in _subclasses(root))
        value = next(reversed([x for x in kinds if _class_name(x) == name]), None)
    if value is None or not issubclass(value, Mask | nn.Module):
        raise BadValue("class: {name}: no such mask or module is imported; import it", name=name)
    kind: type = value
    return kind


def _subclasses(root: type) -> Iterator[type]:
    children: list[type] = type.__subclasses__(root)
    for kind in children:
        yield kind
        yield from _subclasses(kind)
