"""The rules of the house that a program can check. A failure says what to do."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwise
from headwise.cli.commands import COMMANDS

SOURCE = Path(headwise.__file__).parent
ROOT = SOURCE.parent.parent
FILES = sorted(SOURCE.rglob("*.py"))

ROOMS = (
    ("lang",),
    ("errors",),
    ("shapes",),
    ("masks", "positions"),
    ("call",),
    ("reference", "engines"),
    ("attention",),
    ("planning",),
    ("nn",),
    ("document",),
    ("drawing",),
    ("explain",),
    ("verify", "check"),
    ("heads",),
    ("plots",),
    ("cli",),
)
"""The rooms from the ground up. A room may import from rooms above it in this list, never from
those below it nor from its neighbour on the same line."""

EVERYWHERE = {"attend", "plan", "of", "__init__", "forward"}
"""The doors that may have more than eight parameters: `attend`, `plan` and `Call.of` are one
signature; `__init__` and `forward` of MultiheadAttention are PyTorch's, the latter with a cache."""

MAY_IMPORT_REFERENCE = {"explain", "verify"}
MAY_READ_ENVIRONMENT = {
    "cli/commands.py": "the language",
    "heads/models/catalogue.py": "where models are kept",
}
MOST_LINES, LONGEST_FUNCTION, MOST_PARAMETERS = 400, 60, 8


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room(module: str) -> str:
    """The room of ``headwise.a.b``: ``a``; the package itself is the public face."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import of headwise, whether at the top or inside a function."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headwise"):
            yield node.lineno, str(node.module)
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name.startswith("headwise"))


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef))


DOORS = ("__init__.py", "__main__.py")
"""The package's own two files stand outside the rooms."""


@pytest.mark.parametrize("path", [f for f in FILES if name(f) not in DOORS], ids=name)
def test_imports_go_down_the_house(path):
    floor = {each: level for level, line in enumerate(ROOMS) for each in line}
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in floor, f"{name(path)}: put the new room '{own}' into ROOMS, and say why there"
    for line, module in imports(path):
        other = room(module)
        if other in ("", own):
            continue
        assert floor[other] < floor[own], (
            f"{name(path)}:{line} imports {module}: '{own}' stands below or beside '{other}'. "
            "Move the piece both need into an earlier room."
        )


@pytest.mark.parametrize("path", FILES, ids=name)
def test_only_those_who_prove_or_explain_import_the_reference(path):
    own = path.relative_to(SOURCE).parts[0]
    for line, module in imports(path):
        assert module != "headwise.reference" or own in MAY_IMPORT_REFERENCE, (
            f"{name(path)}:{line} imports the reference, which is what it is held against"
        )


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_and_functions_stay_small(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MOST_LINES, f"{name(path)} has {lines} lines: it is two concepts; split it"
    for function in functions(path):
        first = function.body[1] if ast.get_docstring(function) and function.body[1:] else None
        start = first.lineno if first else function.lineno
        length = (function.end_lineno or start) - start + 1
        assert length <= LONGEST_FUNCTION, f"{name(path)}: {function.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_signatures_stay_small_and_say_what_they_take(path):
    for function in functions(path):
        taken = function.args
        count = len(taken.posonlyargs + taken.args + taken.kwonlyargs)
        count -= bool(taken.args) and taken.args[0].arg in ("self", "cls")
        where = f"{name(path)}:{function.lineno} {function.name}"
        assert count <= MOST_PARAMETERS or function.name in EVERYWHERE, (
            f"{where} takes {count} parameters: pass a built part instead"
        )
        assert function.name.startswith("_") or not taken.kwarg, (
            f"{where} swallows **{taken.kwarg and taken.kwarg.arg}: name what it takes"
        )


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_drawer_no_hidden_state(path):
    assert path.stem not in ("utils", "helpers", "common", "misc"), (
        f"{name(path)}: name the concept it holds, or put each piece where it is used"
    )
    for node in ast.walk(tree(path)):
        assert not isinstance(node, ast.Global), f"{name(path)}:{node.lineno}: no module state"
    for node in tree(path).body:
        value = getattr(node, "value", None)
        empty = isinstance(value, ast.Dict | ast.List | ast.Set) and not ast.unparse(value)[1:-1]
        assert not empty, f"{name(path)}:{node.lineno}: an empty container at the top is state"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_what_comes_from_outside_is_never_run(path):
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        where = f"{name(path)}:{node.lineno}"
        assert called not in ("eval", "exec", "pickle.load", "pickle.loads"), f"{where}: {called}"
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called == "torch.load":
            assert words.get("weights_only") == "True", f"{where}: torch.load must not unpickle"
        if called.endswith(("np.load", "numpy.load")):
            assert words.get("allow_pickle") == "False", f"{where}: np.load must not unpickle"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_the_environment_changes_no_number(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\benviron\b|\bgetenv\b", text) or name(path) in MAY_READ_ENVIRONMENT, (
        f"{name(path)} reads the environment; pass an argument instead"
    )


@pytest.mark.parametrize(
    ("folder", "catalogue", "beside"),
    [
        (
            "masks",
            "headwise.masks:MASKS",
            {"base", "checks", "drawn", "expression", "layout", "sizes", "tiles", "working"},
        ),
        ("positions", "headwise.positions:POSITIONS", {"base", "relative"}),
        (
            "engines",
            "headwise.engines:ENGINES",
            {"autograd_transforms", "dropout", "kernel", "sinks", "statistics"},
        ),
        ("cli", "headwise.cli.commands:COMMANDS", {"reporting", "output", "commands"}),
    ],
)
def test_a_catalogue_is_its_folder(folder, catalogue, beside):
    module, variable = catalogue.split(":")
    entries = getattr(__import__(module, fromlist=[variable]), variable)
    files = {p.stem for p in (SOURCE / folder).glob("*.py")} - beside - {"__init__"}
    files |= {p.parent.name for p in (SOURCE / folder).glob("*/__init__.py")}
    listed = {home(entry) for entry in entries}
    assert listed == files, f"add to {catalogue}: {files - listed}; or a file for {listed - files}"


def home(entry: object) -> str:
    """The file that a catalogue's entry stands in: a word, a module, or what a module defines."""
    where = entry if isinstance(entry, str) else getattr(entry, "__module__", None)
    return str(where or getattr(entry, "__name__", "")).rsplit(".", 1)[-1]


def test_tests_have_no_tolerance_of_their_own():
    words = ("atol" + "=", "rtol" + "=", "all" + "close(", "approx" + "(", "assert_" + "close(")
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found = [word for word in words if word in text]
        assert not found, f"{path.relative_to(ROOT)} uses {found}: use verify.budget.accept"


def loaded(code: str) -> set[str]:
    script = f"{code}; import sys; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return {line.split(".")[0] for line in done.stdout.splitlines()}


HEAVY = {"transformers", "numpy", "safetensors", "jinja2", "matplotlib", "tokenizers", "scipy"}


def test_importing_headwise_loads_torch_and_nothing_else_heavy():
    import_all = "import headwise as hw; [getattr(hw, name) for name in hw.__all__]"
    own, torch_alone = loaded(import_all), loaded("import torch, jaxtyping")
    assert "torch" in own
    assert not (own - torch_alone) & HEAVY


@pytest.mark.parametrize("words", [["--help"], ["--lang", "zh", "--help"], ["--version"]])
def test_help_answers_without_torch(words):
    modules = loaded(f"from headwise.cli import main; main({words!r})")
    assert not modules & (HEAVY | {"torch"})


@pytest.mark.parametrize("word", COMMANDS)
def test_help_of_each_word_answers_without_torch(word):
    assert "torch" not in loaded(f"from headwise.cli import main; main([{word!r}, '--help'])")
