"""The Chinese catalogues: one .po file for each package, and the .mo file that the library reads.

python -m tools.messages update    add new messages, remove unused messages, compile
python -m tools.messages check     fail if a translation is missing, unused or broken
python -m tools.messages compile   only write the .mo file

A package ("room") is a folder of ``src/headwise``; the single-file modules share ``core.po``. A
message is the literal first argument in a call of `Text` or of an error class.
"""

import ast
import io
import string
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

SOURCE = Path(__file__).parent.parent / "src" / "headwise"
ROOTS = frozenset({"Text", "HeadwiseError"})
"""The first argument of these classes and of their subclasses is a message."""
NOT_TEMPLATES = frozenset({"Translated"})
"""Subclasses whose arguments are in both languages and need no translation."""
MACHINERY = frozenset({"lang.py", "errors.py"})
"""Files that may pass a message in a variable, because they define the classes of `ROOTS`."""


@dataclass(frozen=True)
class Message:
    """One English message, its place in the source, and the names of its values."""

    source: str
    room: str
    where: str
    values: frozenset[str] | None
    """None if the source does not list the values: ``Text(source, **values)``."""


@dataclass(frozen=True)
class Source:
    """The messages of a source tree, and the faults in calls with a message."""

    messages: tuple[Message, ...]
    faults: tuple[str, ...]

    def by_room(self) -> dict[str, set[str]]:
        """Return the English texts of each package."""
        rooms: dict[str, set[str]] = {}
        for message in self.messages:
            rooms.setdefault(message.room, set()).add(message.source)
        return rooms


def extract(source: Path = SOURCE) -> Source:
    """Find the messages in all Python files under a folder."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(source.rglob("*.py"))}
    classes = message_classes(list(trees.values()))
    messages: list[Message] = []
    faults: list[str] = []
    for path, tree in trees.items():
        parts = path.relative_to(source).parts
        room = parts[0] if len(parts) > 1 else "core"
        for call in _calls(tree, classes):
            where = f"{path.relative_to(source).as_posix()}:{call.lineno}"
            literals, fault = _literals(call.args[0])
            if not literals and not fault and _name(call) == "Text" and path.name not in MACHINERY:
                fault = "the message is not a literal"
            if fault:
                faults.append(f"{where}: {fault}: {ast.unparse(call)[:80]}")
            values = _values(call)
            messages += (Message(text, room, where, values) for text in literals if text)
    return Source(tuple(messages), tuple(faults))


def message_classes(trees: list[ast.Module]) -> frozenset[str]:
    """Return the names of `ROOTS` and of their subclasses, except `NOT_TEMPLATES`."""
    bases = {
        node.name: {ast.unparse(base).rsplit(".", 1)[-1] for base in node.bases}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    classes = set(ROOTS)
    while more := {name for name, own in bases.items() if own & classes} - classes:
        classes |= more
    return frozenset(classes - NOT_TEMPLATES)


def _calls(tree: ast.Module, classes: frozenset[str]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and _name(node) in classes:
            yield node


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).rsplit(".", 1)[-1]


def _literals(node: ast.expr) -> tuple[list[str], str]:
    """Return the literal texts of an argument, and the reason if it cannot be translated."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value], ""
    if isinstance(node, ast.IfExp):
        (first, fault), (second, other) = _literals(node.body), _literals(node.orelse)
        return first + second, fault or other
    if isinstance(node, ast.JoinedStr):
        return [], "an f-string cannot be translated; write a template with named fields"
    if isinstance(node, ast.BinOp):
        return [], "a concatenation cannot be translated; write one literal"
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".format", ".join")):
        return [], "a formatted text cannot be translated; pass named values, or use joined()"
    return [], ""  # a variable that holds a Text


def _values(call: ast.Call) -> frozenset[str] | None:
    names = [keyword.arg for keyword in call.keywords]
    return None if None in names else frozenset(name for name in names if name)


def fields(template: str) -> set[str]:
    """Return the field names of a template; raise ValueError if its braces do not match."""
    names = set()
    for _, name, spec, _ in string.Formatter().parse(template):
        if name is not None:
            names.add(name.split(".")[0].split("[")[0])
            names |= fields(spec or "")
    return names


def read(catalogues: Path) -> dict[str, Catalog]:
    """Read the catalogues in a folder, by package."""
    return {
        path.stem: read_po(io.BytesIO(path.read_bytes()), locale="zh", charset="utf-8")
        for path in sorted(catalogues.glob("*.po"))
    }


def translations(catalogue: Catalog) -> dict[str, str]:
    """Return the Chinese text by English text; a fuzzy translation counts as empty."""
    return {
        str(entry.id): "" if entry.fuzzy else str(entry.string) for entry in catalogue if entry.id
    }


def update(source: Path = SOURCE) -> None:
    """Update the catalogues to the messages of the source, and compile them.

    A new message gets its translation in another package or, marked fuzzy, the translation of a
    similar removed message. Otherwise its translation is empty.
    """
    folder = source / "locale" / "zh"
    catalogues, rooms = read(folder), extract(source).by_room()
    elsewhere = {
        text: target
        for catalogue in catalogues.values()
        for text, target in translations(catalogue).items()
        if target
    }
    for name in catalogues.keys() - rooms.keys():
        (folder / f"{name}.po").unlink()
    for name, texts in rooms.items():
        catalogue = catalogues.get(name, Catalog(locale="zh", charset="utf-8"))
        own = translations(catalogue)
        for text in texts:
            if not own.get(text) and text in elsewhere:
                catalogue.delete(text)
                catalogue.add(text, elsewhere[text])
        template = Catalog()
        for text in texts:
            template.add(text)
        catalogue.update(template)
        with (folder / f"{name}.po").open("wb") as file:
            write_po(
                file, catalogue, width=100, sort_output=True, omit_header=True, ignore_obsolete=True
            )
    compile_catalogue(source)


def compile_catalogue(source: Path = SOURCE) -> Path:
    """Write one .mo file with the messages of all packages, and return its path."""
    compiled = Catalog(locale="zh", charset="utf-8")
    for catalogue in read(source / "locale" / "zh").values():
        for text, target in translations(catalogue).items():
            compiled.add(text, target)
    path = source / "locale" / "zh" / "LC_MESSAGES" / "headwise.mo"
    path.parent.mkdir(exist_ok=True)
    written = path.with_suffix(".new")
    with written.open("wb") as file:
        write_mo(file, compiled)
    written.replace(path)  # atomic: a reader never sees an incomplete file
    return path


def is_stale(source: Path = SOURCE) -> bool:
    """Whether the .mo file is missing or older than a catalogue."""
    folder = source / "locale" / "zh"
    compiled = folder / "LC_MESSAGES" / "headwise.mo"
    newest = max(path.stat().st_mtime for path in folder.glob("*.po"))
    return not compiled.exists() or compiled.stat().st_mtime < newest


def faults(source: Path = SOURCE) -> Iterator[str]:
    """Yield one line for each fault of the messages and their catalogues."""
    extracted = extract(source)
    yield from extracted.faults
    for message in extracted.messages:
        yield from _wrong_values(message)
    own = {name: translations(c) for name, c in read(source / "locale" / "zh").items()}
    rooms = extracted.by_room()
    first: dict[str, tuple[str, str]] = {}
    for name in sorted(rooms.keys() | own.keys()):
        texts, targets = rooms.get(name, set()), own.get(name, {})
        yield from (f"{name}.po: missing: {text!r}" for text in sorted(texts - targets.keys()))
        yield from (f"{name}.po: stale: {text!r}" for text in sorted(targets.keys() - texts))
        for text in sorted(texts & targets.keys()):
            target = targets[text]
            if not target:
                yield f"{name}.po: not translated, or fuzzy: {text!r}"
            elif broken := _broken(text, target):
                yield f"{name}.po: {broken}: {text!r} -> {target!r}"
            other, other_room = first.setdefault(text, (target, name))
            if other != target:
                yield f"{name}.po: translated differently in {other_room}.po: {text!r}"


def _wrong_values(message: Message) -> Iterator[str]:
    if not message.values:  # without values, a message is not a template, and its braces are text
        return
    try:
        wanted = fields(message.source)
    except ValueError as error:
        yield f"{message.where}: not a template ({error}): {message.source!r}"
        return
    if missing := wanted - message.values:
        yield f"{message.where}: no value for {sorted(missing)}: {message.source!r}"
    if unused := message.values - wanted:
        yield f"{message.where}: {sorted(unused)} not in the text: {message.source!r}"


def _broken(text: str, target: str) -> str:
    try:
        english = fields(text)
    except ValueError:
        return ""  # not a template: its braces are text
    if not english:
        return ""
    try:
        unknown = {name for name in fields(target) - english if name.isidentifier()}
    except ValueError as error:
        return f"not a template ({error})"
    return f"fields {sorted(unknown)} are not in the English text" if unknown else ""


def main(command: str) -> int:
    """Run one of the three commands, and return the exit status."""
    if command == "update":
        update()
    elif command == "compile":
        compile_catalogue()
    wrong = list(faults()) if command in ("update", "check") else []
    if wrong:
        print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
