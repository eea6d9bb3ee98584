"""The Chinese catalogues: one .po file per room, and the .mo file that the library reads.

python -m tools.messages update    add new messages, drop those that are gone, compile
python -m tools.messages check     fail where a translation is missing, stale or broken
python -m tools.messages compile   write the .mo file only
"""

import io
import string
import sys
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_file
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

SOURCE = Path(__file__).parent.parent / "src" / "headwise"
CATALOGUES = SOURCE / "locale" / "zh"
COMPILED = CATALOGUES / "LC_MESSAGES" / "headwise.mo"
KEYWORDS = dict.fromkeys(
    ("Text", "BadValue", "BadType", "BadFile", "EngineRefused", "MissingExtra"), None
)
"""The calls whose first argument is an English message."""


def room(path: Path) -> str:
    """The catalogue of a source file: its top folder, or "core" for the files beside them."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "core"


def extracted() -> dict[str, set[str]]:
    """The messages in the source, by room."""
    rooms: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for _, message, _, _ in extract_from_file("python", path, keywords=KEYWORDS):
            source = message if isinstance(message, str) else message[0]
            if source:
                rooms.setdefault(room(path), set()).add(source)
    return rooms


def translated() -> dict[str, dict[str, str]]:
    """The translations in the catalogues, by room."""
    rooms = {}
    for path in sorted(CATALOGUES.glob("*.po")):
        catalogue = read_po(io.BytesIO(path.read_bytes()), locale="zh", charset="utf-8")
        rooms[path.stem] = {str(entry.id): str(entry.string) for entry in catalogue if entry.id}
    return rooms


def update() -> None:
    """Bring the catalogues in line with the source: new messages get an empty translation."""
    known = {source: target for room in translated().values() for source, target in room.items()}
    wanted = extracted()
    for path in CATALOGUES.glob("*.po"):
        if path.stem not in wanted:
            path.unlink()
    own = translated()
    for name, sources in wanted.items():
        catalogue = Catalog(locale="zh", charset="utf-8")
        for source in sources:
            catalogue.add(source, own.get(name, {}).get(source) or known.get(source, ""))
        with (CATALOGUES / f"{name}.po").open("wb") as file:
            write_po(file, catalogue, width=100, sort_output=True, omit_header=True)
    compile_catalogue()


def compile_catalogue() -> None:
    """Write one .mo file of all rooms."""
    catalogue = Catalog(locale="zh", charset="utf-8")
    for room_messages in translated().values():
        for source, target in room_messages.items():
            catalogue.add(source, target)
    COMPILED.parent.mkdir(exist_ok=True)
    with COMPILED.open("wb") as file:
        write_mo(file, catalogue)


def faults() -> Iterator[str]:
    """What is wrong with the catalogues, one line each."""
    wanted, own = extracted(), translated()
    first: dict[str, tuple[str, str]] = {}
    for name in sorted(wanted.keys() | own.keys()):
        sources, targets = wanted.get(name, set()), own.get(name, {})
        for source in sorted(sources - targets.keys()):
            yield f"{name}.po: missing: {source!r}"
        for source in sorted(targets.keys() - sources):
            yield f"{name}.po: stale: {source!r}"
        for source in sorted(sources & targets.keys()):
            target = targets[source]
            if not target:
                yield f"{name}.po: not translated: {source!r}"
            elif (broken := _broken(source, target)) is not None:
                yield f"{name}.po: {broken}: {source!r} -> {target!r}"
            other, room_of = first.setdefault(source, (target, name))
            if other != target:
                yield f"{name}.po: translated otherwise in {room_of}.po: {source!r}"


def _broken(source: str, target: str) -> str | None:
    fields = _fields(source)
    if not fields:
        return None
    try:
        unknown = _fields(target) - fields
    except ValueError as error:
        return f"not a template ({error})"
    return f"fields {sorted(unknown)} are not in the English text" if unknown else None


def _fields(template: str) -> set[str]:
    """The names of a template's fields; a text with stray braces has no values and no fields."""
    try:
        return {
            name
            for _, name, _, _ in string.Formatter().parse(template)
            if name and name.isidentifier()
        }
    except ValueError:
        return set()


def main(command: str) -> int:
    """Run one of the three commands; the exit status."""
    if command == "update":
        update()
    elif command == "compile":
        compile_catalogue()
    found = list(faults()) if command in ("update", "check") else []
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
