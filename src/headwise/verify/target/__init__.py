"""Load the target named on the command line, and the errors of a target that cannot be used.

Loading runs the target's code.
"""

import ast
import importlib
import importlib.util
import sys
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from headwise.errors import BadFile
from headwise.lang import Text, Translated

EXAMPLE = """\
from torch.func import functional_call
from yours import YourAttention
def attention(x, weights, heads, mask=None):
    named = {"your_query.weight": weights.q, "your_query.bias": weights.q_bias}
    return functional_call(YourAttention(x.shape[-1], heads), named, (x, mask))"""
"""An adapter: x is (B, L, E); weights has q, k, v, out and q_bias, k_bias, v_bias, out_bias in
PyTorch's orientation, y = x Wᵀ + b; mask is (B, H, L, L), True where a query may attend, or None.
It returns the output (B, L, E), or the output and the weights (B, H, L, L)."""


class NotRecognised(BadFile):
    """A target that cannot be called without the user's help; the message shows an adapter."""


def not_recognised(reason: Text) -> NotRecognised:
    """The error for a target that needs an adapter.

    Example:
        >>> print(str(not_recognised(Text("no weight is recognised"))).splitlines()[0])
        target: no weight is recognised; write an adapter and verify that, as file.py:attention
    """
    return NotRecognised(
        "target: {reason}; write an adapter and verify that, as file.py:attention\n{example}",
        reason=reason,
        example=EXAMPLE,
    )


def no_function(reason: Text) -> BadFile:
    """The error for a function of q, k and v that cannot be called."""
    return BadFile(
        "target: {reason}; expected f(q, k, v, mask=None) on (B, H, L, D), giving (B, H, L, Dv)",
        reason=reason,
    )


def no_memory(name: str, details: str | Text) -> BadFile:
    """The error for a target that ran out of memory."""
    return BadFile(
        "target: {name} ran out of memory: {details}; expected a few MiB at these sizes: "
        "look for what grows without end, or allow more with --memory-limit",
        name=name,
        details=" ".join(details.split())[:200] if isinstance(details, str) else details,
    )


def one_line(error: BaseException | None, limit: int = 200) -> str:
    """The type and the message of an error, in one line of limited length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:limit]


def without_example(error: NotRecognised) -> BadFile:
    """The same error in one line, for a place that shows the adapter on its own."""
    en, zh = (text.removesuffix(EXAMPLE).strip() for text in (error.text.en, error.text.zh))
    return BadFile(Translated(en, zh))


RUNS_CODE = Text("This runs the code of the target as it stands, with your rights.")

LARGEST = 1 << 20  # the number of bytes of a file in which names are searched


def load(target: str) -> object:
    """The class, function or module that ``file.py:Name`` or ``package.Name`` names.

    Raises:
        BadFile: if there is no such file or name, if importing it raises, or if the name is
            nothing that can be called.
    """
    path, colon, name = target.rpartition(":")
    result = _attribute(load_file(Path(path)), name, path) if colon else _dotted(target)
    if not callable(result):
        raise BadFile(
            "target: {target} is {found_type}, expected a class, a function or a module",
            target=target,
            found_type=type(result).__name__,
        )
    return result


def load_file(path: Path) -> ModuleType:
    """The module of a Python file. This runs its code."""
    if not path.is_file() or path.suffix != ".py":
        raise BadFile("target: {path} is no Python file; write path/to/file.py:Name", path=path)
    spec = importlib.util.spec_from_file_location(f"headwise_target_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise BadFile("target: {path} cannot be imported", path=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the file look themselves up here
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _fails(str(path), error) from error
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module


def _dotted(target: str) -> object:
    if target.endswith(".py"):
        raise _nameless(Path(target))
    module, dot, name = target.rpartition(".")
    if not dot or not all(part.isidentifier() for part in target.split(".")):
        raise BadFile(
            "target: expected path/to/file.py:Name or package.Name, got {target!r}", target=target
        )
    try:
        return _attribute(importlib.import_module(module), name, module)
    except BadFile:
        raise
    except (Exception, SystemExit) as error:
        raise _fails(module, error) from error


def _nameless(path: Path) -> BadFile:
    """The error for a file without ``:Name``; it lists the names in the file without running it."""
    names: list[str] = []
    with suppress(OSError, SyntaxError, ValueError):
        body = ast.parse(path.read_bytes()[:LARGEST]).body
        kinds = (ast.ClassDef, ast.FunctionDef)
        names = [node.name for node in body if isinstance(node, kinds) and node.name[0] != "_"]
    has = ", ".join(names[:8]) or "-"
    return BadFile(
        "target: {path} is a file; write {path}:{first}; it has {has}",
        path=path,
        first=names[0] if names else Text("Name"),
        has=has,
    )


def _attribute(module: ModuleType, name: str, where: str) -> object:
    if not hasattr(module, name):
        content = vars(module).items()
        defined = (n for n, v in content if getattr(v, "__module__", "") == module.__name__)
        public = sorted(n for n in defined if not n.startswith("_"))
        callables = [n for n, value in content if callable(value)]
        has = ", ".join(get_close_matches(name, callables, 3) or public[:8]) or "-"
        raise BadFile(
            "target: {where} has no {name!r}; it has {has}", where=where, name=name, has=has
        )
    return getattr(module, name)


def _fails(where: str, error: BaseException) -> BadFile:
    return BadFile(
        "target: {where} does not import: {error}; run it with Python alone first",
        where=where,
        error=one_line(error, 300),
    )
