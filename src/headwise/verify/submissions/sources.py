"""Find the files that folders and patterns name, and the files that a file imports."""

import ast
import glob
import hashlib
import os
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from headwise.document.text_format import clean
from headwise.errors import BadFile
from headwise.verify.report import SOURCE_FILES, file_and_name
from headwise.verify.target.loading import FOLDERS_ABOVE, source_of

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
"""Folders that are not searched, like those whose name starts with a dot."""

MOST_FILES = 10_000
LARGEST = 8 << 20  # only this many bytes of a file are hashed


def expanded(arguments: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Expand arguments to targets, ``file.py:Name`` or ``package.Name``, and files to search.

    Args:
        arguments: targets, files, folders, which are searched with their subfolders, and patterns
            such as ``week3/*/attention.py``. Duplicates are removed.

    Raises:
        BadFile: if a file does not exist, a folder or pattern has no file, or there are too many.

    Example:
        >>> expanded(["torch.nn.MultiheadAttention", "mine.py:Attention"])
        ['torch.nn.MultiheadAttention', 'mine.py:Attention']
    """
    result: dict[str, None] = {}
    for given in arguments:
        argument = os.fspath(given)
        for item in _expanded(argument):
            result[item] = None
            if len(result) > MOST_FILES:
                raise BadFile(
                    "target: {name} has more than {most} files; name a smaller folder",
                    name=clean(argument),
                    most=MOST_FILES,
                )
    return list(result)


def _expanded(argument: str) -> Iterator[str]:
    path = Path(argument)
    if path.is_dir():
        files = list(_in_folder(path))
        if not files:
            raise BadFile("target: the folder {name} has no Python file", name=clean(argument))
        yield from files
    elif path.is_file() or not is_file(argument):
        yield argument
    else:
        magic = glob.has_magic(argument)
        matches = sorted(glob.glob(argument, recursive=True)) if magic else []  # noqa: PTH207
        if not matches:
            raise BadFile("target: there is no file {name}", name=clean(argument))
        for match in matches:
            if SKIPPED.intersection(Path(match).parts):
                continue
            folder = Path(match).is_dir()
            yield from _in_folder(Path(match)) if folder else (match,) if is_file(match) else ()


def is_file(target: str) -> bool:
    """Whether a target is a file to search or a pattern, without the name of an attention."""
    return target.endswith(SOURCE_FILES) or (glob.has_magic(target) and ":" not in target)


def _in_folder(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if n not in SKIPPED and not n.startswith("."))
        for name in sorted(names):
            if name.endswith(SOURCE_FILES) and not name.startswith("."):
                yield str(Path(place) / name)


def digest(target: str) -> str:
    """Hash the file of a target and the local files that it imports.

    The hash is empty for ``package.Name``.
    """
    file, _ = file_and_name(target)
    seen: dict[Path, bytes] = {}
    waiting = [Path(file)] if file else []
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen[path] = _content(path)
        waiting += _imported(path)
    parts = sorted(
        (str(path), hashlib.sha256(content).hexdigest()) for path, content in seen.items()
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest() if parts else ""


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST)
    except OSError:
        return b""


def _imported(path: Path) -> Iterator[Path]:
    """The files beside, below or above a file that it imports, by name or relatively."""
    try:
        tree = ast.parse(source_of(path)[:LARGEST])
    except (OSError, SyntaxError, ValueError, RecursionError, BadFile):
        return
    above = list(path.resolve().parents[:FOLDERS_ABOVE])
    for node in ast.walk(tree):
        names: list[str] = []
        bases = above
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            own = node.module or ""
            names = [own, *(f"{own}.{alias.name}".strip(".") for alias in node.names)]
            bases = above[node.level - 1 : node.level] if node.level else above
        for base, name in product(bases, filter(None, names)):
            stem = base.joinpath(*name.split("."))
            candidates = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
            yield from (candidate for candidate in candidates if candidate.is_file())
