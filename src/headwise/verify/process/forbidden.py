"""Detect uses of forbidden classes and functions, while the target runs and in its source.

A class is used if one of its methods runs; a function is used if it is called, under any name and
from any place. A function of PyTorch is also used if it is called as a method of a tensor or as an
operator of ``torch.ops``. Code that runs while the file is imported, such as a comparison at its
end, does not count. The search of the source covers the target and every definition of its file
that the target refers to.
"""

import ast
import importlib
import linecache
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from headwise.errors import BadFile, BadValue
from headwise.verify.target.loading import source_of

ALIASES = {"F": "torch.nn.functional", "nn": "torch.nn", "np": "numpy"}
"""The common short names of modules."""

MOST = 20  # at most this many uses are reported


def resolve(name: str) -> object:
    """Return the class or function with a dotted name.

    Raises:
        BadValue: if no class or function with this name can be imported.

    Example:
        >>> resolve("nn.MultiheadAttention") is torch.nn.MultiheadAttention
        True
    """
    first, *rest = name.split(".")
    parts = [*ALIASES.get(first, first).split("."), *rest]
    for count in range(len(parts), 0, -1):
        with suppress(ImportError, AttributeError, ValueError, TypeError):
            value: object = importlib.import_module(".".join(parts[:count]))
            for part in parts[count:]:
                value = getattr(value, part)
            if callable(value):
                return value
    raise BadValue(
        "forbid: expected a class or function that can be imported, got {name!r}; write it as in "
        "torch.nn.MultiheadAttention",
        name=name,
    )


@dataclass(frozen=True)
class _Forbidden:
    """A forbidden class or function, with the code and the operator that reveal its use."""

    name: str
    value: object
    codes: frozenset[CodeType]
    operator: str

    @classmethod
    def of(cls, name: str) -> "_Forbidden":
        value = resolve(name)
        members = list(vars(value).values()) if isinstance(value, type) else [value]
        codes = frozenset(f.__code__ for f in members if isinstance(f, FunctionType))
        short = str(getattr(value, "__name__", name.rpartition(".")[2]))
        owners = (torch, torch.Tensor, torch._C._nn)
        of_torch = str(getattr(value, "__module__", None) or "torch").startswith("torch")
        operator = of_torch and not isinstance(value, type)
        known = operator and any(hasattr(owner, short) for owner in owners)
        return cls(name, value, codes, short if known else "")

    def is_target(self, target: object) -> bool:
        """Whether a target is the forbidden object, an instance of it or derived from it."""
        if isinstance(self.value, type):
            cls = target if isinstance(target, type) else type(target)
            return issubclass(cls, self.value)
        return target is self.value or getattr(target, "func", None) is self.value


@dataclass
class Watch:
    """A context manager that records where forbidden names run; idle if `names` is empty.

    Args:
        names: dotted names of classes and functions.
    """

    names: Sequence[str]
    forbidden: list[_Forbidden] = field(default_factory=list, init=False)
    hits: dict[tuple[str, str, int], None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.forbidden = [_Forbidden.of(name) for name in self.names]
        self._codes = {code: item.name for item in self.forbidden for code in item.codes}
        self._operators = {item.operator: item.name for item in self.forbidden if item.operator}

    def __enter__(self) -> "Watch":
        if self.names:
            threading.setprofile(self._profile)
            sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        if self.names:
            sys.setprofile(None)
            threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        code = self._codes.get(frame.f_code) if event == "call" else None
        name = code or self._operators.get(operator_called(frame, event, arg))
        if name is not None:
            place = _place(frame)
            if place is not None:
                self.hits[(name, *place)] = None

    def uses(self, target: object, path: str) -> list[dict[str, object]]:
        """List every use of a forbidden name as data: `name`, `how`, `file`, `line`, `text`.

        `how` is "target" if the target is the forbidden object or is derived from it, "runs" if the
        forbidden object ran, and "source" if it is only mentioned in the source.
        """
        own, colon, name = path.rpartition(":")
        uses = [
            _use(item.name, "target", own or path, 0)
            for item in self.forbidden
            if item.is_target(target)
        ]
        uses += [_use(item, "runs", file, line) for item, file, line in self.hits]
        ran = {(use["name"], use["line"]) for use in uses}
        if colon and self.names:
            found = _in_source(Path(own), name, self.forbidden)
            uses += [
                _use(item, "source", own, line) for item, line in found if (item, line) not in ran
            ]
        return uses[:MOST]


def operator_called(frame: FrameType, event: str, arg: Any) -> str:
    """Return the name of the built-in function or operator that a profiling event calls."""
    if event == "c_call":
        return str(getattr(arg, "__name__", ""))
    if event == "call" and frame.f_code.co_qualname == "OpOverload.__call__":
        return str(getattr(frame.f_locals.get("self"), "_opname", ""))
    return ""


def _use(name: str, how: str, file: str, line: int) -> dict[str, object]:
    text = linecache.getline(file, line).strip()[:200] if line else ""
    return {"name": name, "how": how, "file": file, "line": line, "text": text}


def _place(frame: FrameType | None) -> tuple[str, int] | None:
    """Return the file and line of the target that led to a frame; None if the target did not.

    This is the innermost line in the user's files, or else in an installed package but PyTorch.
    """
    own, installed = None, None
    while frame is not None:
        file, place = frame.f_code.co_filename, (frame.f_code.co_filename, frame.f_lineno)
        if file.startswith(_HEADWISE):
            return (own or installed) if file.startswith(_TARGET) else None
        if frame.f_code.co_name == "<module>":
            return None
        if file.startswith(_PACKAGES):
            installed = installed or (None if file.startswith(_TORCH) else place)
        elif not file.startswith((_PYTHON, "<frozen")):
            own = own or place
        frame = frame.f_back
    return None


_HEADWISE = str(Path(__file__).parents[2])
_TARGET = str(Path(__file__).parents[1] / "target")  # the package that calls targets
_PYTHON = sysconfig.get_paths()["stdlib"]
_PACKAGES = tuple({sysconfig.get_paths()[name] for name in ("purelib", "platlib")})
_TORCH = str(Path(torch.__file__).parent)


def _in_source(file: Path, name: str, forbidden: Sequence[_Forbidden]) -> Iterator[tuple[str, int]]:
    """Yield the name and line of every forbidden object that the target's source mentions."""
    try:
        tree = ast.parse(source_of(file))
    except (OSError, SyntaxError, ValueError, BadFile):
        return
    aliases = dict(_imports(tree))
    for node in _reached(tree, name):
        for part in ast.walk(node):
            dotted = _dotted(part, aliases)
            value = _value(dotted)
            for item in forbidden:
                if value is not None and value is item.value:
                    yield item.name, int(getattr(part, "lineno", 0))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the local name and the dotted name of every import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                yield local, alias.name if alias.asname else local
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if alias.name != "*":
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"
                elif node.module in sys.modules:
                    names = vars(sys.modules[node.module])
                    yield from ((name, f"{node.module}.{name}") for name in names)


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    """Return the dotted name that an expression reads; empty if it is not a dotted name."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, "")
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, aliases)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _value(dotted: str) -> object:
    """Return the object with a dotted name in a loaded module, or None."""
    module, _, name = dotted.rpartition(".")
    if module in sys.modules:
        return getattr(sys.modules[module], name, None)
    return getattr(_value(module), name, None) if module else None


def _reached(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Return the definition of a name and all top-level definitions that it needs, transitively.

    Return the whole file if the name is not defined at its top level.
    """
    defined: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        names = [getattr(node, "name", "")]
        if isinstance(node, ast.Assign | ast.AnnAssign):
            names = [part.id for part in _variables(node) if isinstance(part.ctx, ast.Store)]
        for word in filter(None, names):
            defined.setdefault(word, []).append(node)
    if name not in defined:
        return tree.body
    seen, waiting = {name}, [name]
    while waiting:
        for node in defined[waiting.pop()]:
            words = {part.id for part in _variables(node)}
            waiting += sorted((words & set(defined)) - seen)
            seen |= words & set(defined)
    return [node for word in seen for node in defined[word]]


def _variables(node: ast.AST) -> list[ast.Name]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Name)]
