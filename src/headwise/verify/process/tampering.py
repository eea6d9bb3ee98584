"""Notice a target that replaces what the verification computes with.

A target runs in the process that judges it, so that a replaced ``torch.softmax`` would change the
oracle as well. `snapshot` keeps, before the target is loaded, what headwise and the functions of
torch that it calls consist of; `changed` lists what is something else afterwards. New names are no
change, nor are functions that the verification does not call. This notices accidents and plain
attempts; code that looks for this snapshot in memory can defeat it.
"""

import math
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import torch
from torch import nn

Snapshot = dict[tuple[str, str], tuple[object, ...]]
"""For an owner and an attribute, the value and what a function of it consists of."""

MODULES = (
    *("builtins", "math", "torch", "torch.autograd", "torch.func", "torch.linalg"),
    "torch.nn.functional",
)
ROOMS = ("headwise.call", "headwise.masks", "headwise.reference", "headwise.verify")
"""The packages whose code computes a verdict; what it calls of torch is what is looked at."""

CLASSES = (torch.Tensor, torch._C.TensorBase, nn.Module, nn.Linear, nn.MultiheadAttention)
DISPLAY = frozenset({"__repr__", "__str__", "__format__"})
"""Methods that only show a value, which notebooks replace for good reasons."""

COMPILED = frozenset({"manual_seed", "__init__", "__setstate__"})
"""What PyTorch replaces itself when its compiler is loaded."""
_COMPILER = tuple(str(Path(torch.__file__).with_name(name)) for name in ("_dynamo", "_compile.py"))

CONSTANTS = (bool, int, float, str, tuple, frozenset, torch.dtype)


def snapshot() -> Snapshot:
    """What the verification consists of; call it when all of it is loaded.

    Example:
        >>> before = snapshot()
        >>> softmax, torch.softmax = torch.softmax, torch.sigmoid
        >>> changed(before), setattr(torch, "softmax", softmax)
        (['torch.softmax'], None)
        >>> changed(before)
        []
    """
    return _read(_names_used(_loaded(ROOMS)))


def _loaded(packages: Collection[str]) -> list[ModuleType]:
    """The modules of some packages that are loaded."""
    inside = tuple(f"{package}." for package in packages)
    return [m for name, m in sorted(sys.modules.items()) if f"{name}.".startswith(inside)]


def _read(used: Collection[str]) -> Snapshot:
    """headwise and, of Python and PyTorch, what has the given names, as it is now."""
    result: Snapshot = {}
    for module in _loaded(["headwise"]):
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                result |= {(f"{module.__name__}.{name}", k): _parts(v) for k, v in _members(value)}
            if not name.startswith("__"):
                result[module.__name__, name] = _parts(value)
    for owner in MODULES:
        values = list(vars(sys.modules[owner]).items())
        result |= {(owner, name): _parts(v) for name, v in values if name in used}
    for cls in CLASSES:
        owner = f"{cls.__module__}.{cls.__qualname__}"
        members = {name: v for base in reversed(cls.__mro__) for name, v in _members(base)}
        result |= {
            (owner, name): _parts(value)
            for name, value in members.items()
            if name in used or name.startswith("__")
        }
    return {key: parts for key, parts in result.items() if parts}


def changed(before: Snapshot) -> list[str]:
    """The dotted names of what is no longer what it was."""
    after = _read({name for _, name in before})
    names = []
    for key, parts in before.items():
        now = after.get(key, ())
        same = len(now) == len(parts) and all(map(_identical, now, parts))
        if not same and not (key[1] in COMPILED and _by_compiler(now)):
            names.append(".".join(key))
    return names


def _by_compiler(parts: tuple[object, ...]) -> bool:
    """Whether a function is one that PyTorch's compiler has put around another."""
    files = [part.co_filename for part in parts if isinstance(part, CodeType)]
    return any(file.startswith(_COMPILER) for file in files)


def _members(cls: type) -> Iterator[tuple[str, object]]:
    return ((name, value) for name, value in list(vars(cls).items()) if name not in DISPLAY)


def _identical(now: object, before: object) -> bool:
    constants = isinstance(now, CONSTANTS) and type(now) is type(before)
    nan = isinstance(now, float) and isinstance(before, float) and math.isnan(now + before)
    return now is before or nan or (constants and now == before)


def _parts(value: object) -> tuple[object, ...]:
    """A function with its code and defaults, a class, a constant, a container with its content.

    Nothing of anything else.
    """
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        return (value, *(_code(value.fget)))
    if isinstance(value, FunctionType):
        return (value, *_code(value), *(value.__defaults__ or ()))
    if isinstance(value, CONSTANTS) or callable(value):
        return (value,)
    if isinstance(value, dict):
        return (value, *value.keys(), *value.values())
    if isinstance(value, list | set):
        return (value, *value)
    return ()


def _code(function: object) -> tuple[CodeType, ...]:
    return (function.__code__,) if isinstance(function, FunctionType) else ()


def _names_used(modules: list[ModuleType]) -> frozenset[str]:
    """Every global and attribute that the code of these modules, and of PyTorch's attention, reads.

    The latter is one of the two references that a target is compared with.
    """
    codes = [nn.MultiheadAttention.forward.__code__, nn.MultiheadAttention.__init__.__code__]
    codes.append(nn.functional.multi_head_attention_forward.__code__)
    codes += [nn.Module._call_impl.__code__, nn.Linear.forward.__code__]
    for module in modules:
        own = (v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__)
        for value in list(own):
            members = list(vars(value).values()) if isinstance(value, type) else [value]
            wrapped = (getattr(member, "__wrapped__", member) for member in members)
            codes += [
                code for member in wrapped for code in _code(getattr(member, "__func__", member))
            ]
    return frozenset(names_in(codes))


def names_in(codes: list[CodeType]) -> set[str]:
    """The globals and attributes that code reads, and the code inside it.

    Example:
        >>> sorted(names_in([(lambda x: [math.sqrt(y) for y in x]).__code__]))
        ['math', 'sqrt']
    """
    names, waiting = set[str](), list(codes)
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return names
