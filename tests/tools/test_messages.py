"""The tool that extracts, checks and compiles the Chinese catalogues."""

import gettext
from pathlib import Path

import pytest

from tools import messages

SOURCE = """
from errors import BadValue

class Odd(BadValue):
    pass

def run(size, plural):
    Text("head {index}", index=size)
    raise Odd("size: expected {size}", size=size)
"""
CATALOGUE = """
msgid "head {index}"
msgstr "头 {index}"

msgid "size: expected {size}"
msgstr "size：应为 {size}"
"""
ERRORS = "class HeadwiseError(Exception): ...\nclass BadValue(HeadwiseError, ValueError): ...\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source tree with one room whose catalogue is complete."""
    (tmp_path / "room").mkdir()
    (tmp_path / "locale" / "zh").mkdir(parents=True)
    (tmp_path / "errors.py").write_text(ERRORS)
    (tmp_path / "room" / "a.py").write_text(SOURCE)
    (tmp_path / "locale" / "zh" / "room.po").write_text(CATALOGUE, encoding="utf-8")
    return tmp_path


def append(source: Path, code: str) -> None:
    with (source / "room" / "a.py").open("a") as file:
        file.write(f"\n{code}\n")


def rewrite(source: Path, old: str, new: str) -> None:
    path = source / "locale" / "zh" / "room.po"
    path.write_text(path.read_text("utf-8").replace(old, new), encoding="utf-8")


def test_a_complete_catalogue_has_no_faults(source: Path) -> None:
    assert list(messages.faults(source)) == []


def test_subclasses_of_the_errors_carry_messages(source: Path) -> None:
    assert messages.extract(source).by_room() == {"room": {"head {index}", "size: expected {size}"}}


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ('Text("tail")', "room.po: missing: 'tail'"),
        ('BadValue("a" if x else "b")', "room.po: missing: 'b'"),
        ('Text(f"head {x}")', "room/a.py:11: an f-string cannot be translated"),
        ('Text("a " + x)', "room/a.py:11: a concatenation cannot"),
        ('Text(", ".join(x))', "room/a.py:11: a formatted text cannot"),
        ("Text(x)", "room/a.py:11: the message is not a literal"),
        ('Text("head {index}", head=1)', "room/a.py:11: no value for ['index']"),
        ('Text("head {index}", index=1, k=2)', "room/a.py:11: ['k'] not in the text"),
        ('Text("head {index", index=1)', "room/a.py:11: not a template"),
    ],
)
def test_a_fault_of_the_source_is_reported(source: Path, code: str, fault: str) -> None:
    append(source, code)
    assert any(line.startswith(fault) for line in messages.faults(source))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('msgstr "头 {index}"', 'msgstr ""', "room.po: not translated, or fuzzy: 'head {index}'"),
        ('msgid "head', '#, fuzzy\nmsgid "head', "room.po: not translated, or fuzzy: 'head"),
        ("头 {index}", "头 {idx}", "room.po: fields ['idx'] are not in the English text"),
        ("头 {index}", "头 {index", "room.po: not a template"),
        ('msgid "head {index}"', 'msgid "heads {index}"', "room.po: stale: 'heads {index}'"),
    ],
)
def test_a_fault_of_a_catalogue_is_reported(source: Path, old: str, new: str, fault: str) -> None:
    rewrite(source, old, new)
    assert any(line.startswith(fault) for line in messages.faults(source))


def test_two_rooms_that_translate_a_message_differently_are_reported(source: Path) -> None:
    (source / "other").mkdir()
    (source / "other" / "b.py").write_text('Text("head {index}", index=1)')
    text = 'msgid "head {index}"\nmsgstr "第 {index} 头"\n'
    (source / "locale" / "zh" / "other.po").write_text(text, encoding="utf-8")
    assert list(messages.faults(source)) == [
        "room.po: translated differently in other.po: 'head {index}'"
    ]


def test_update_adds_drops_and_keeps(source: Path) -> None:
    append(source, 'Text("something quite new")')
    rewrite(source, 'msgid "size: expected {size}"', 'msgid "an unrelated sentence"')
    messages.update(source)
    catalogue = messages.translations(messages.read(source / "locale" / "zh")["room"])
    assert catalogue["head {index}"] == "头 {index}"
    assert catalogue["something quite new"] == ""
    assert "an unrelated sentence" not in catalogue


def test_update_offers_the_translation_of_a_similar_message_as_fuzzy(source: Path) -> None:
    text = (source / "room" / "a.py").read_text().replace("size: expected", "size: I expected")
    (source / "room" / "a.py").write_text(text)
    messages.update(source)
    written = (source / "locale" / "zh" / "room.po").read_text("utf-8")
    assert "fuzzy" in written
    assert 'msgstr "size：应为 {size}"' in written
    assert any("fuzzy" in line for line in messages.faults(source))


def test_the_compiled_file_is_what_gettext_reads(source: Path) -> None:
    assert messages.is_stale(source)
    messages.compile_catalogue(source)
    assert not messages.is_stale(source)
    catalogue = gettext.translation("headwise", source / "locale", ["zh"])
    assert catalogue.gettext("head {index}") == "头 {index}"
