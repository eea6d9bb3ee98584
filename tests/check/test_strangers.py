"""Articles that somebody wrote who has not read the checker: right ones, and ones with faults.

`manifest.json` says of each what is planted where. The figures of both halves are in docs/check.md.
"""

import json
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from headwise.check import check, read_article
from headwise.check.checker import is_clean
from headwise.errors import BadFile

DATA = Path(__file__).parents[1] / "data" / "articles"
STRANGERS, SEVERAL = DATA / "strangers", sorted((DATA / "several_settings").iterdir())
MANIFEST = json.loads((STRANGERS / "manifest.json").read_text(encoding="utf-8"))
CONVERTED = (".ipynb", ".docx", ".html", ".rst")
CONVERTS = find_spec("headwise.document.reading") is not None


def text_of(name):
    """The text of a file; a notebook or a document is converted first."""
    path = STRANGERS / name
    if path.suffix in CONVERTED:
        if not CONVERTS:
            pytest.skip("needs the reading of notebooks and documents")
        return import_module("headwise.document.reading").read_article(path).text
    return read_article(path)


def entries(*, right):
    return [pytest.param(entry, id=entry["file"]) for entry in MANIFEST if entry["right"] is right]


def wrong(report):
    return [f for f in report.findings if f.verdict != "last digit"]


@pytest.mark.parametrize("entry", entries(right=True))
def test_no_right_number_is_accused(entry):
    report = check(text_of(entry["file"]))
    assert [(f.line, f.printed, f.what.en) for f in wrong(report)] == []
    assert report.checked > 10
    if entry["rounding"] == "exact":
        assert report.findings == ()


@pytest.mark.parametrize("entry", entries(right=False))
def test_every_planted_fault_is_found_and_its_cause_is_named(entry):
    report = check(text_of(entry["file"]))
    found = wrong(report)
    planted = {abs(value) for fault in entry["faults"] for value in fault["printed"]}
    following = {abs(value) for fault in entry["faults"] for value in fault["follows"]}
    for fault in entry["faults"]:
        values = {abs(value) for value in fault["printed"]}
        here = [f for f in found if magnitude(f.printed) in values]
        assert here, fault["kind"]
        assert all(f.cause is not None for f in here if f.verdict == "wrong")
    assert {magnitude(f.printed) for f in found} <= planted | following
    assert not is_clean(report)


def magnitude(printed):
    return float(re.sub(r"[^\d.eE]", "", printed))


@pytest.mark.parametrize("path", SEVERAL, ids=lambda path: path.name)
def test_several_settings_in_one_article_are_each_judged_by_their_own(path):
    report = check(read_article(path))
    assert (report.findings, report.unmatched) == ((), ())
    assert is_clean(report)
    decimals = len(re.findall(r"(?<![\d.])\d\.\d{3,}", read_article(path)))
    assert report.checked >= min(decimals, 20)


def test_an_article_that_announces_weights_asks_for_them():
    text = "X = [[1, 2], [0, 1]] and learned weight matrices W_Q, W_K, W_V. Weights: [[0.9, 0.1]]"
    with pytest.raises(BadFile, match="--weights FILE"):
        check(text)
