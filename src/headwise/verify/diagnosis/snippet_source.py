"""Write the parts of a snippet as source that needs only PyTorch and the target."""

import inspect
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from headwise.verify.report import file_and_name
from headwise.verify.target.loading import folders_above, levels_above


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
    levels = levels_above(path)
    while (folder / "__init__.py").is_file() or len(parts) <= levels:
        folder, parts = folder.parent, [folder.name, *parts]
    if all(part.isidentifier() for part in parts) and not _is_taken(parts[0], folder):
        lines = ["import sys", f"sys.path.insert(0, {str(folder)!r})"]
        lines += [f"sys.path.append({str(f)!r})" for f in folders_above(path) if f != folder]
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

    Example:
        >>> constructor_call(torch.nn.Linear, {"in_features": 2}, "torch.nn.Linear")
        (['from torch.nn import Linear'], 'Linear(in_features=2)')
    """
    lines, target = loading(name)
    words = []
    for key, value in arguments.items():
        more: list[str] = []
        text = literal(value)
        if isinstance(value, SimpleNamespace):
            more, text = _namespace(cls, arguments, key)
        elif _is_config(value):
            more, text = _own_config(cls, key, value, name)
        lines += more
        words.append(f"{key}={text}")
    return list(dict.fromkeys(lines)), f"{target}({', '.join(words)})"


def _namespace(cls: type, arguments: Mapping[str, object], key: str) -> tuple[list[str], str]:
    """Source of a config object, as the plainest kind with which the class can be constructed."""
    fields = {k: v for k, v in vars(arguments[key]).items() if k != "missing_names"}
    items = ", ".join(f"{k!r}: {literal(v)}" for k, v in fields.items())
    both = 'type("Config", (dict,), {"__getattr__": dict.__getitem__})'
    kinds: tuple[tuple[object, list[str], str], ...] = (
        (
            SimpleNamespace(**fields),
            ["from types import SimpleNamespace"],
            f"SimpleNamespace({_words(fields)})",
        ),
        (fields, [], f"{{{items}}}"),
    )
    for plain, lines, text in kinds:
        with suppress(Exception), torch.random.fork_rng(devices=[]):
            cls(**{**arguments, key: plain})
            return lines, text
    return [], f"{both}({{{items}}})"


def _is_config(value: object) -> bool:
    """Whether a value is an object of a class that a person wrote for settings."""
    known = type(value).__module__.partition(".")[0] in ("builtins", "torch")
    return not known and hasattr(value, "__dict__")


def _own_config(cls: type, key: str, value: object, name: str) -> tuple[list[str], str]:
    """Source of a config object of a class of its own, with the attributes set afterwards."""
    own = type(value)
    file, _ = file_and_name(name)
    beside = own.__module__ == cls.__module__
    module = f"{file}:" if file and beside else f"{own.__module__}."
    lines, target = loading(f"{module}{own.__name__}")
    taken = set(inspect.signature(own).parameters)
    given = {k: v for k, v in vars(value).items() if k in taken}
    call, fresh = f"{target}({_words(given)})", own(**given)
    later = {
        k: v
        for k, v in vars(value).items()
        if k not in taken and literal(getattr(fresh, k, None)) != literal(v)
    }
    if not later:
        return lines, call
    assigned = [f"{key}.{k} = {literal(v)}" for k, v in later.items()]
    return [*lines, f"{key} = {call}", *assigned], key


def _words(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{k}={literal(v)}" for k, v in fields.items())
