"""The rules of the source tree that a program can check; each failure says what to do.

``python -m tests.test_architecture`` prints the packages, their sizes and their imports.
"""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import headwise
from headwise.cli.commands import COMMANDS

SOURCE = Path(headwise.__file__).parent
ROOT = SOURCE.parent.parent

ROOMS = (
    ("lang",),
    ("errors",),
    ("shapes",),
    ("masks", "positions", "score_functions"),
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
    ("plots", "environment"),
    ("cli", "pytest_plugin"),
)
"""The rooms from the ground up: files and folders of ``src/headwise``. A room may import from rooms
above it in this list, never from those below it nor from its neighbour on the same line."""

PACKAGE_FILES = {"__init__.py", "__main__.py", "renamed.py"}
"""The package's own files stand outside the rooms."""
MAY_IMPORT_REFERENCE = {"explain", "verify"}
MAY_READ_ENVIRONMENT = {
    "cli/commands.py": "the language",
    "heads/models/catalogue.py": "where models are kept",
}
MAY_TAKE_MORE_PARAMETERS = {"attend", "plan", "of", "__init__", "forward"}
"""`attend`, `plan` and `Call.of` share one signature; `__init__` and `forward` of
`MultiheadAttention` are PyTorch's, the latter with a cache."""

MAY_TAKE_KEYWORDS = {"attention_function", "mask_function", "check_positive"}
"""transformers passes options of its own; a check takes every size by its name."""

MOST_LINES_OF_FILE, LONGEST_FUNCTION, MOST_PARAMETERS = 400, 60, 8
MOST_FILES, MOST_LINES = 302, 55_300
"""A ratchet: lower these when the source shrinks, and raise them only for a new feature."""
MOST_FILES_OF_FOLDER = 13
LARGER_FOLDERS = {".": 14, "check": 14, "cli": 14}
"""Folders that still hold more; a command of the command line is one file."""
VAGUE_FILE_NAMES = {"utils", "helpers", "common", "misc"}
VAGUE_WORDS = {"each", "asked", "told", "said", "door", "doors", "house"}
"""Words that say nothing of what a value is."""
HEAVY = {"transformers", "numpy", "safetensors", "jinja2", "matplotlib", "tokenizers", "scipy"}


@dataclass(frozen=True)
class Module:
    """One source file, parsed once for all tests."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(SOURCE).as_posix()

    @property
    def room(self) -> str:
        return self.path.relative_to(SOURCE).parts[0].removesuffix(".py")

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def functions(self) -> Iterator[ast.FunctionDef]:
        return (node for node in self.nodes if isinstance(node, ast.FunctionDef))

    @property
    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and module of every import of headwise, at the top or inside a function."""
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headwise"):
                yield node.lineno, str(node.module)
            if isinstance(node, ast.Import):
                names = (alias.name for alias in node.names)
                yield from ((node.lineno, name) for name in names if name.startswith("headwise"))

    @property
    def identifiers(self) -> Iterator[tuple[int, str]]:
        """Line and name of every class, function, parameter and variable that is bound here."""
        for node in self.nodes:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield node.lineno, node.name
            elif isinstance(node, ast.arg):
                yield node.lineno, node.arg
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.lineno, node.id


MODULES = tuple(map(Module, sorted(SOURCE.rglob("*.py"))))
LEVELS = {room: level for level, line in enumerate(ROOMS) for room in line}


def room_of(module: str) -> str:
    """The room of ``headwise.a.b``: ``a``; the package itself has none."""
    return ([*module.split("."), ""])[1]


def report(faults: list[str]) -> None:
    """Fail with every fault on a line of its own."""
    assert not faults, "\n" + "\n".join(faults)


def test_imports_run_down_the_rooms():
    faults = []
    for module in MODULES:
        if module.name in PACKAGE_FILES:
            continue
        if module.room not in LEVELS:
            faults.append(f"{module.name}: put the new room '{module.room}' into ROOMS")
            continue
        for line, target in module.imports:
            room = room_of(target)
            if room in ("", module.room) or LEVELS[room] < LEVELS[module.room]:
                continue
            faults.append(
                f"{module.name}:{line} imports {target}: '{module.room}' stands below or beside "
                f"'{room}'. Move the piece both need into an earlier room."
            )
    assert not faults, "\n" + "\n".join([*faults, "", picture()])


def test_only_rooms_that_prove_or_explain_import_the_reference():
    report(
        [
            f"{module.name}:{line} imports the reference, by which it is judged: an oracle shares "
            "no code with what it judges"
            for module in MODULES
            for line, target in module.imports
            if target == "headwise.reference" and module.room not in MAY_IMPORT_REFERENCE
        ]
    )


def test_files_and_functions_stay_small():
    faults = [
        f"{module.name} has {module.lines} lines, more than {MOST_LINES_OF_FILE}: split it"
        for module in MODULES
        if module.lines > MOST_LINES_OF_FILE
    ]
    for module in MODULES:
        for function in module.functions:
            length = _length(function)
            if length > LONGEST_FUNCTION:
                faults.append(
                    f"{module.name}:{function.lineno}: {function.name} has {length} lines, more "
                    f"than {LONGEST_FUNCTION}: give a part of it a name"
                )
    report(faults)


def _length(function: ast.FunctionDef) -> int:
    """The lines of a function without its docstring."""
    first = function.body[1] if ast.get_docstring(function) and function.body[1:] else function
    return (function.end_lineno or first.lineno) - first.lineno + 1


def test_the_source_does_not_grow():
    files, lines = len(MODULES), sum(module.lines for module in MODULES)
    assert files <= MOST_FILES, f"{files} files: merge those that are one concept"
    assert lines <= MOST_LINES, f"{lines} lines: look for what is written twice"


def test_folders_stay_small():
    sizes = Counter(module.path.parent.relative_to(SOURCE).as_posix() for module in MODULES)
    report(
        [
            f"{folder}: {size} files side by side; group them by concept"
            for folder, size in sizes.items()
            if size > LARGER_FOLDERS.get(folder, MOST_FILES_OF_FOLDER)
        ]
    )


def test_a_file_name_occurs_once_in_a_room():
    places = defaultdict(list)
    for module in MODULES:
        if module.path.name != "__init__.py":
            places[module.room, module.path.name].append(module.name)
    report(
        [
            f"{' and '.join(names)}: name each for its content, so that it is found without its "
            "folder"
            for names in places.values()
            if len(names) > 1
        ]
    )


def test_a_class_name_occurs_once():
    places = defaultdict(list)
    for module in MODULES:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module.name}:{node.lineno}")
    report(
        [
            f"class {name} in {' and '.join(where)}: name each for what it is"
            for name, where in places.items()
            if len(where) > 1 and not name.startswith("_")
        ]
    )


def test_names_say_what_they_stand_for():
    report(
        [
            f"{module.name}:{line}: '{name}': use the field's word for the value"
            for module in MODULES
            for line, name in sorted(set(module.identifiers))
            if VAGUE_WORDS & set(re.split(r"_|(?<=[a-z])(?=[A-Z])", name))
            or VAGUE_WORDS & {word.lower() for word in re.findall("[A-Z][a-z]+", name)}
        ]
        + [
            f"{module.name}: name the concept it holds, or put each piece where it is used"
            for module in MODULES
            if module.path.stem in VAGUE_FILE_NAMES
        ]
    )


def test_signatures_stay_small_and_list_their_parameters():
    faults = []
    for module in MODULES:
        for function in module.functions:
            taken = function.args
            count = len(taken.posonlyargs + taken.args + taken.kwonlyargs)
            count -= bool(taken.args) and taken.args[0].arg in ("self", "cls")
            where = f"{module.name}:{function.lineno} {function.name}"
            if count > MOST_PARAMETERS and function.name not in MAY_TAKE_MORE_PARAMETERS:
                faults.append(f"{where} takes {count} parameters: pass a built part instead")
            public = not function.name.startswith("_")
            if taken.kwarg and public and function.name not in MAY_TAKE_KEYWORDS:
                faults.append(f"{where} takes **{taken.kwarg.arg}: list its parameters")
    report(faults)


def test_modules_keep_no_state():
    faults = []
    for module in MODULES:
        faults += [
            f"{module.name}:{node.lineno}: no global; pass the value"
            for node in module.nodes
            if isinstance(node, ast.Global)
        ]
        for node in module.tree.body:
            value = getattr(node, "value", None)
            container = isinstance(value, ast.Dict | ast.List | ast.Set)
            if container and not ast.unparse(value)[1:-1]:
                faults.append(f"{module.name}:{node.lineno}: an empty container here is state")
    report(faults)


def test_data_from_outside_is_never_run():
    faults = []
    for module in MODULES:
        for node in module.nodes:
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            where = f"{module.name}:{node.lineno}"
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            if called in ("eval", "exec", "pickle.load", "pickle.loads"):
                faults.append(f"{where}: {called} runs what it reads")
            if called == "torch.load" and options.get("weights_only") != "True":
                faults.append(f"{where}: torch.load needs weights_only=True")
            if (
                called.endswith(("np.load", "numpy.load"))
                and options.get("allow_pickle") != "False"
            ):
                faults.append(f"{where}: np.load needs allow_pickle=False")
    report(faults)


def test_the_environment_changes_no_number():
    report(
        [
            f"{module.name} reads the environment; pass an argument instead"
            for module in MODULES
            if re.search(r"\benviron\b|\bgetenv\b", module.text)
            and module.name not in MAY_READ_ENVIRONMENT
        ]
    )


CATALOGUES = (
    ("masks/patterns", "headwise.masks:MASKS", set[str]()),
    ("positions", "headwise.positions:POSITIONS", {"relative_terms", "frequencies"}),
    (
        "engines",
        "headwise.engines:ENGINES",
        {"autograd_transforms", "dropout", "kernel", "nonfinite", "statistics"},
    ),
    (
        "cli",
        "headwise.cli.commands:COMMANDS",
        {"click_messages", "commands", "output", "reporting"},
    ),
)
"""A folder, its catalogue, and the files that are no entry of it."""


def test_a_catalogue_lists_its_folder():
    faults = []
    for folder, catalogue, others in CATALOGUES:
        module, variable = catalogue.split(":")
        entries = getattr(__import__(module, fromlist=[variable]), variable)
        files = {path.stem for path in (SOURCE / folder).glob("*.py")} - others - {"__init__"}
        files |= {path.parent.name for path in (SOURCE / folder).glob("*/__init__.py")}
        listed = {_file_of(entry) for entry in entries}
        faults += [
            f"add the entries of {folder}/{file}.py to {catalogue}" for file in files - listed
        ]
        faults += [f"{catalogue}: {entry} has no file in {folder}" for entry in listed - files]
    report(faults)


def _file_of(entry: object) -> str:
    """The file of a catalogue's entry: its own name, or the module that defines it."""
    where = entry if isinstance(entry, str) else getattr(entry, "__module__", None)
    return str(where or getattr(entry, "__name__", "")).rsplit(".", 1)[-1]


def test_tests_have_no_tolerance_of_their_own():
    words = ("atol" + "=", "rtol" + "=", "all" + "close(", "approx" + "(", "assert_" + "close(")
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    report(
        [
            f"{path.relative_to(ROOT)} uses {word}: use headwise.verify's acceptance rule"
            for path, text in sorted(texts.items())
            for word in words
            if word in text
        ]
    )


def loaded(code: str) -> set[str]:
    """The packages that a fresh process has loaded after some code."""
    script = f"{code}; import sys; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return {line.split(".")[0] for line in done.stdout.splitlines()}


def test_importing_headwise_loads_torch_and_nothing_else_heavy():
    import_all = "import headwise as hw; [getattr(hw, name) for name in hw.__all__]"
    own, torch_alone = loaded(import_all), loaded("import torch, jaxtyping")
    assert "torch" in own
    assert not (own - torch_alone) & HEAVY


def test_help_answers_without_torch():
    calls = [["--help"], ["--lang", "zh", "--help"], ["--version"]]
    calls += [[command, "--help"] for command in COMMANDS]
    modules = loaded(f"from headwise.cli import main; [main(call) for call in {calls!r}]")
    assert not modules & (HEAVY | {"torch"}), "import it inside the function that needs it"


def picture() -> str:
    """The rooms from the ground up: files, lines, and the rooms they import."""
    rows = []
    for line in ROOMS:
        for room in line:
            own = [module for module in MODULES if module.room == room]
            targets = {room_of(target) for module in own for _, target in module.imports}
            below = sorted(targets - {room, ""}, key=lambda name: LEVELS.get(name, 0))
            size = f"{len(own):4} files {sum(module.lines for module in own):6} lines"
            rows.append(f"{room:10} {size}   imports {', '.join(below) or 'nothing'}")
    files, lines = len(MODULES), sum(module.lines for module in MODULES)
    return "\n".join([*rows, f"{'in all':10} {files:4} files {lines:6} lines"])


if __name__ == "__main__":
    print(picture())  # noqa: T201
