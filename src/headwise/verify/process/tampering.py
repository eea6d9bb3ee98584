"""Detect a target that replaces functions which the verification uses.

The target and the oracle run in one process, so replacing ``torch.softmax`` would change the oracle
as well. `snapshot` records headwise and the functions of torch that headwise calls, before the
target is loaded; `changed` lists what differs afterwards. New names do not count, nor do changes
to functions that the verification does not call. This detects accidents and simple attempts, not
code that searches the memory for the snapshot.
"""

import math
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import torch
from torch import nn

Snapshot = dict[tuple[str, str], tuple[object, ...]]
"""The parts of each recorded value, by its owner and the name of its attribute."""

MODULES = (
    *("builtins", "math", "torch", "torch.autograd", "torch.func", "torch.linalg"),
    "torch.nn.functional",
)
ROOMS = ("headwise.call", "headwise.masks", "headwise.reference", "headwise.verify")
"""The packages that compute a verdict; the snapshot covers what their code calls of torch."""

CLASSES = (torch.Tensor, torch._C.TensorBase, nn.Module, nn.Linear, nn.MultiheadAttention)
DISPLAY = frozenset({"__repr__", "__str__", "__format__"})
"""Methods that only display a value; notebooks may replace them."""

COMPILED = frozenset({"manual_seed", "__init__", "__setstate__"})
"""The functions that PyTorch itself replaces when its compiler is loaded."""
_COMPILER = tuple(str(Path(torch.__file__).with_name(name)) for name in ("_dynamo", "_compile.py"))

CONSTANTS = (bool, int, float, str, tuple, frozenset, torch.dtype)


def snapshot() -> Snapshot:
    """Record the code of the verification; call this after all of headwise is loaded.

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
    """Return the loaded modules of some packages."""
    inside = tuple(f"{package}." for package in packages)
    return [m for name, m in sorted(sys.modules.items()) if f"{name}.".startswith(inside)]


def _read(used: Collection[str]) -> Snapshot:
    """Read the current state of headwise, and of the given names in Python and PyTorch."""
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
    """List the dotted names whose values have changed since a snapshot."""
    after = _read({name for _, name in before})
    names = []
    for key, parts in before.items():
        now = after.get(key, ())
        same = len(now) == len(parts) and all(map(_identical, now, parts))
        if not same and not (key[1] in COMPILED and _by_compiler(now)):
            names.append(".".join(key))
    return names


def _by_compiler(parts: tuple[object, ...]) -> bool:
    """Whether a function is a wrapper that PyTorch's compiler has installed."""
    files = [part.co_filename for part in parts if isinstance(part, CodeType)]
    return any(file.startswith(_COMPILER) for file in files)


def _members(cls: type) -> Iterator[tuple[str, object]]:
    return ((name, value) for name, value in list(vars(cls).items()) if name not in DISPLAY)


def _identical(now: object, before: object) -> bool:
    constants = isinstance(now, CONSTANTS) and type(now) is type(before)
    nan = isinstance(now, float) and isinstance(before, float) and math.isnan(now + before)
    return now is before or nan or (constants and now == before)


def _parts(value: object) -> tuple[object, ...]:
    """Return what identifies a value: itself, and the code, defaults or items that it contains.

    Return nothing for values other than functions, classes, constants and containers.
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
    """Return every global and attribute that the code of these modules reads.

    PyTorch's attention is included, since it is one of the two references for a target.
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
    """Return the globals and attributes that code objects and their nested code objects read.

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
