"""Write the parts of a snippet as source that needs only PyTorch and the target."""

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, SimpleNamespace

import torch
from torch import Tensor

from headwise.verify.process.tampering import names_in
from headwise.verify.report import file_and_name


def literal(value: object) -> str:
    """Write a value as source; a tensor with all its numbers."""
    if isinstance(value, tuple):
        return "(" + "".join(f"{literal(item)}, " for item in value) + ")"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if not isinstance(value, Tensor):
        return repr(value)
    if value.numel() > 4 and value.is_floating_point():
        first = value.flatten()[0]
        if bool((value == first).all()):
            return f"torch.full({tuple(value.shape)}, {first.item()!r})"
    return f"torch.tensor({value.detach().tolist()})".replace("inf", "torch.inf")


def loading(name: str) -> tuple[list[str], str]:
    """Return the source that imports a target, and the expression for the target.

    Example:
        >>> loading("torch.nn.MultiheadAttention")
        (['from torch.nn import MultiheadAttention'], 'MultiheadAttention')
        >>> for line in loading("week_3.py:Attention")[0]:
        ...     print(line.replace(str(Path.cwd()), "."))
        import sys
        sys.path.insert(0, '.')
        from week_3 import Attention
    """
    file, word = file_and_name(name)
    if file.endswith(".ipynb"):
        return ["from headwise.verify.target import load"], f"load({name!r})"
    if not file:
        module, _, word = name.rpartition(".")
        return ([f"from {module} import {word}"] if module else []), word
    path = Path(file).resolve()
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        folder, parts = folder.parent, [folder.name, *parts]
    if all(part.isidentifier() for part in parts) and not _is_taken(parts[0], folder):
        lines = ["import sys", f"sys.path.insert(0, {str(folder)!r})"]
        return [*lines, f"from {'.'.join(parts)} import {word}"], word
    return ["import runpy", f"{word} = runpy.run_path({str(path)!r})[{word!r}]"], word


def _is_taken(module: str, folder: Path) -> bool:
    """Whether importing a name may give a module other than that of a folder."""
    if module in sys.builtin_module_names or module in sys.stdlib_module_names:
        return True
    loaded = getattr(sys.modules.get(module), "__file__", None)
    return loaded is not None and folder not in Path(loaded).resolve().parents


def constructor_call(
    cls: type, arguments: Mapping[str, object], name: str
) -> tuple[list[str], str]:
    """Return the source that imports a class, and its constructor call; ``name`` is the target.

    A config object is written with only the attributes that the class reads.

    Example:
        >>> constructor_call(torch.nn.Linear, {"in_features": 2}, "torch.nn.Linear")
        (['from torch.nn import Linear'], 'Linear(in_features=2)')
    """
    lines, target = loading(name)
    words = []
    for key, value in arguments.items():
        own, text = type(value), literal(value)
        if isinstance(value, SimpleNamespace):
            lines.append("from types import SimpleNamespace")
            text = f"SimpleNamespace({_fields(value, _names_read(cls))})"
        elif own.__module__ == cls.__module__ and hasattr(value, "__dict__"):
            more, config = loading(f"{name.removesuffix(target)}{own.__name__}")
            lines += more
            text = f"{config}({_fields(value, set(inspect.signature(own).parameters))})"
        words.append(f"{key}={text}")
    return list(dict.fromkeys(lines)), f"{target}({', '.join(words)})"


def _fields(value: object, names: set[str]) -> str:
    return ", ".join(f"{k}={literal(v)}" for k, v in vars(value).items() if k in names)


def _names_read(cls: type) -> set[str]:
    """Return every attribute that the code of a class and of its base classes reads."""
    functions = [
        value
        for base in cls.__mro__
        if not base.__module__.startswith(("torch", "builtins"))
        for value in vars(base).values()
        if isinstance(value, FunctionType)
    ]
    return names_in([function.__code__ for function in functions])
