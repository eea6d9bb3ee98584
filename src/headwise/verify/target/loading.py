"""Load a target from a Python file, a notebook or a package. Loading runs the target's code."""

import ast
import importlib
import importlib.util
import json
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib.abc import InspectLoader
from pathlib import Path
from types import CodeType, ModuleType

from headwise.errors import BadFile
from headwise.lang import Text
from headwise.verify.target import one_line

LARGEST = 1 << 20  # the number of bytes of a file in which names are searched
LARGEST_NOTEBOOK = 64 << 20  # outputs, such as pictures, are part of a notebook
FOLDERS_ABOVE = 4  # in how many folders above a file the modules that it imports are searched
MOST_IMPORTS = 20  # how often a file is tried again with another folder to import from

PACKAGES = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
    "attr": "attrs",
    "dateutil": "python-dateutil",
}
"""Packages whose name to install differs from their name to import."""


def load_target(target: str) -> object:
    """The class, function or module that ``file.py:Name`` or ``package.Name`` names.

    Raises:
        BadFile: if there is no such file or name, if importing it raises, or if the name is
            nothing that can be called.
    """
    path, colon, name = target.rpartition(":")
    result = _attribute(load_file(Path(path), name), name, path) if colon else _dotted(target)
    if not callable(result):
        raise BadFile(
            "target: {target} is {found_type}, expected a class, a function or a module",
            target=target,
            found_type=type(result).__name__,
        )
    return result


def load_file(path: Path, name: str = "") -> ModuleType:
    """The module of a Python file, or of a notebook up to the cell that defines a name.

    Raises:
        BadFile: if there is no such file, or if importing it raises.
    """
    if not path.is_file() or path.suffix not in (".py", ".ipynb"):
        raise BadFile(
            "target: {path} is no Python file and no notebook; write path/to/file.py:Name",
            path=path,
        )
    folders = [path.resolve().parent]
    for _ in range(MOST_IMPORTS):
        try:
            with _searched(folders):
                return _notebook(path, name) if path.suffix == ".ipynb" else _module(path)
        except ModuleNotFoundError as error:
            above = _folder_of(str(error.name or ""), path)
            if above is None or above in folders:
                raise _fails(str(path), error) from error
            folders.append(above)
        except (Exception, SystemExit) as error:
            raise _fails(str(path), error) from error
    raise BadFile("target: {path} cannot be imported", path=path)


@contextmanager
def _searched(folders: list[Path]) -> Iterator[None]:
    """A context in which modules are imported from these folders as well."""
    before = list(sys.path)
    sys.path[:0] = map(str, folders)
    try:
        yield
    finally:
        sys.path[:] = before


def _folder_of(module: str, path: Path) -> Path | None:
    """The nearest folder above a file that contains a module or package, if there is one."""
    first = module.partition(".")[0]
    for folder in path.resolve().parents[:FOLDERS_ABOVE]:
        if first and ((folder / first).is_dir() or (folder / f"{first}.py").is_file()):
            return folder
    return None


def _module(path: Path) -> ModuleType:
    """The module of a file.

    Relative imports work: its folders become packages without running their ``__init__.py``, which
    may need what the target does not.
    """
    package = _package(path)
    name = f"{package}.{path.stem}" if package else f"headwise_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadFile("target: {path} cannot be imported", path=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the file look themselves up here
    spec.loader.exec_module(module)
    return module


def _package(path: Path) -> str:
    """The package for a file with relative imports, created empty; "" for other files."""
    name = ""
    for folder in list(path.resolve().parents[: levels_above(path)])[::-1]:
        name = f"{name}.{folder.name}" if name else f"headwise_target_{folder.name}"
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules.setdefault(name, package)
    return name


def levels_above(path: Path) -> int:
    """How many folders up the relative imports of a file reach; 0 where it has none."""
    return max((n.level for n in _imports(path) if isinstance(n, ast.ImportFrom)), default=0)


def folders_above(path: Path) -> list[Path]:
    """The folders above that of a file in which the modules that it imports are."""
    names: list[str] = []
    for node in _imports(path):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif not node.level:
            names.append(node.module or "")
    found = [folder for name in names if (folder := _folder_of(name, path)) is not None]
    return [folder for folder in dict.fromkeys(found) if folder != path.resolve().parent]


def _imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Every import in a file; none where it is no Python."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError, BadFile):
        nodes = ast.walk(ast.parse(source_of(path)))
        return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return []


def _notebook(path: Path, name: str) -> ModuleType:
    """The module of a notebook's code cells, in order, up to the one that defines a name.

    A cell that raises is skipped, since it may read data that is not there.
    """
    cells = _code_cells(path)
    module = ModuleType(f"headwise_target_{path.stem}")
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module
    source = "\n".join(cells)
    lines = source.splitlines(keepends=True)
    linecache.cache[module.__file__] = (len(source), None, lines, module.__file__)
    defining = [i for i, cell in enumerate(cells) if _defines(cell, name)]
    start, failed = 1, None
    for cell in cells[: max(defining, default=len(cells) - 1) + 1]:
        padded = "\n" * (start - 1) + cell  # so that its lines have their numbers
        start += cell.count("\n") + 1
        try:
            _Cell(padded, module.__file__).exec_module(module)
        except (Exception, SystemExit) as error:
            failed = error
    if name and not hasattr(module, name) and failed is not None:
        raise failed
    return module


def source_of(path: Path) -> str | bytes:
    """The Python source of a file, or of the code cells of a notebook, as it is run.

    Raises:
        BadFile: if a notebook cannot be read as one.
        OSError: if there is no such file.
    """
    return "\n".join(_code_cells(path)) if path.suffix == ".ipynb" else path.read_bytes()


class _Cell(InspectLoader):
    """The loader of one code cell."""

    def __init__(self, source: str, path: str) -> None:
        self.source, self.path = source, path

    def get_source(self, fullname: str) -> str:
        """The cell as Python."""
        return self.source

    def get_code(self, fullname: str) -> CodeType | None:
        """The compiled cell, whose lines have their numbers in the notebook's code."""
        return self.source_to_code(self.source, self.path)


def _code_cells(path: Path) -> list[str]:
    if path.stat().st_size > LARGEST_NOTEBOOK:
        raise BadFile(
            "target: {path} is larger than {most} bytes", path=path, most=LARGEST_NOTEBOOK
        )
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = [c["source"] for c in cells if c["cell_type"] == "code"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise BadFile("target: {path} is no notebook", path=path) from error
    return [_plain(s if isinstance(s, str) else "".join(map(str, s))) for s in sources]


def _plain(cell: str) -> str:
    """A cell as Python: lines for the notebook itself, such as ``%matplotlib``, do nothing."""
    if cell.lstrip().startswith("%%") and not cell.lstrip().startswith(("%%time", "%%capture")):
        return "\n" * cell.count("\n")
    lines = []
    for line in cell.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(f"{indent}pass" if line.lstrip().startswith(("%", "!", "?")) else line)
    return "\n".join(lines)


def _defines(cell: str, name: str) -> bool:
    try:
        nodes = ast.parse(cell).body
    except (SyntaxError, ValueError):
        return False
    names = [n.name for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    targets = [t for n in nodes if isinstance(n, ast.Assign) for t in n.targets]
    return name in names or any(isinstance(t, ast.Name) and t.id == name for t in targets)


def _dotted(target: str) -> object:
    if target.endswith((".py", ".ipynb")):
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
    with suppress(OSError, SyntaxError, ValueError, BadFile):
        source = source_of(path)[:LARGEST]
        kinds = (ast.ClassDef, ast.FunctionDef)
        names = [
            n.name for n in ast.parse(source).body if isinstance(n, kinds) and n.name[0] != "_"
        ]
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
    if isinstance(error, BadFile):
        return error
    missing = str(error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    first = missing.partition(".")[0]
    if first:
        return BadFile(
            "target: {where} does not import: there is no module {missing!r}; install it first: "
            "pip install {package}",
            where=where,
            missing=missing,
            package=PACKAGES.get(first, first.replace("_", "-")),
        )
    return BadFile(
        "target: {where} does not import: {error}; run it with Python alone first",
        where=where,
        error=one_line(error, 300),
    )
