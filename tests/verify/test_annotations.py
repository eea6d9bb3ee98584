"""GitHub annotations: one line a finding, with file and line, whatever stands in the report."""

import copy
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import BadFile
from headwise.lang import Translated, same
from headwise.verify import verify
from headwise.verify.report import data, unusable, with_forbidden
from headwise.verify.report.annotations import annotations, place
from headwise.verify.target import load

TARGETS = Path(__file__).parent / "targets"
COMMAND = re.compile(r"::(notice|warning|error) (title|file)=[^\n\r]*::[^\n\r]*")


@pytest.fixture(scope="module")
def wrong() -> dict:
    name = f"{TARGETS / 'wrong.py'}:no_scale_function"
    return data(verify(load(name), name))


def parsed(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Level, properties and message of every line, unescaped as the runner does it."""
    result = []
    for line in text.removesuffix("\n").split("\n"):
        assert COMMAND.fullmatch(line), line
        level, _, rest = line[2:].partition(" ")
        given, _, message = rest.partition("::")
        properties = dict(item.partition("=")[::2] for item in given.split(","))
        result.append(
            (level, {k: _unescaped(v) for k, v in properties.items()}, _unescaped(message))
        )
    return result


def _unescaped(text: str) -> str:
    for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n")):
        text = text.replace(code, character)
    return text.replace("%25", "%")


def test_a_mistake_is_an_error_on_its_line(wrong, monkeypatch) -> None:
    monkeypatch.chdir(TARGETS.parent)
    ((level, properties, message),) = parsed(annotations([wrong]))
    assert level == "error"
    assert properties["file"] == "targets/wrong.py"
    line = (TARGETS / "wrong.py").read_text().splitlines()[int(properties["line"]) - 1]
    assert line.strip() == wrong["mistakes"][0][0]["line"]["text"]
    assert properties["title"].startswith("headwise verify ")
    assert message.startswith("differs: ")
    assert "no_scale: The scores are not divided" in message
    assert "得分没有除以" in parsed(annotations([wrong], "zh"))[0][2]


def test_the_levels_and_the_line_of_the_definition(wrong) -> None:
    lines = (TARGETS / "wrong.py").read_text().splitlines()
    start = 1 + next(i for i, line in enumerate(lines) if line.startswith("def no_scale_function"))
    for status, level in (("accepted", "notice"), ("unproven", "warning")):
        report = {**copy.deepcopy(wrong), "status": status, "mistakes": []}
        ((got, properties, _),) = parsed(annotations([report]))
        assert (got, properties["line"]) == (level, str(start))
    target = wrong["target"]
    ((level, *_),) = parsed(annotations([unusable(target, BadFile(same("no")))]))
    assert level == "warning"


def test_each_forbidden_use_is_an_error_on_its_line(wrong) -> None:
    uses = [
        {"name": "torch.bmm", "how": how, "file": "wrong.py", "line": line, "text": "bmm(a, b)"}
        for how, line in (("runs", 7), ("source", 9), ("target", 0))
    ]
    accepted = {**wrong, "status": "accepted", "accepted": True, "mistakes": []}
    found = parsed(annotations([with_forbidden(accepted, uses)]))
    assert [level for level, *_ in found] == ["error"] * 3
    assert [p["line"] for _, p, _ in found[:2]] == ["7", "9"]
    assert "uses torch.bmm, which is forbidden, at wrong.py:7: bmm(a, b)" in found[0][2]
    assert len(parsed(annotations([with_forbidden(wrong, uses)]))) == 4


def test_a_package_has_no_file_and_files_elsewhere_their_whole_path(wrong, tmp_path) -> None:
    assert place({**wrong, "target": "torch.nn.MultiheadAttention"}) == ("", 0)
    file = tmp_path / "no_python.py"
    file.write_text("(")
    assert place({"target": f"{file}:f"}) == (str(file), 0)
    assert place({"target": str(file)}) == (str(file), 0)
    assert place({"target": f"{os.path.relpath(file)}:none", "mistakes": []})[1] == 0


@given(st.text(st.characters(codec=None)))
def test_any_words_stay_on_their_line(words: str) -> None:
    report = unusable(words, BadFile(Translated(words, words)))
    assert len(parsed(annotations([report]))) == 1
    uses = [{"name": words, "how": "runs", "file": words, "line": 1, "text": words}]
    assert len(parsed(annotations([{**report, "forbidden": uses}]))) == 2


@pytest.mark.parametrize("words", ["100%0Asure", "a,b:c=d", "two\nlines", "%25", "::error::x"])
def test_words_come_back_as_they_were(words: str) -> None:
    report = unusable(f"{words}.py", BadFile(Translated(words, words)))
    ((level, properties, message),) = parsed(annotations([report]))
    assert (level, message) == ("warning", f"not verified: {words}")
    assert properties["title"] == f"headwise verify {words}.py"
