"""JUnit XML has the usual structure for every content of the report."""

import copy
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import BadFile
from headwise.lang import Translated, same
from headwise.verify import verify
from headwise.verify.checks.contract import CONTRACT
from headwise.verify.report import data, unusable, with_forbidden, with_seconds
from headwise.verify.report.annotations import relative
from headwise.verify.report.formats import junit
from headwise.verify.target import load

TARGETS = Path(__file__).parent / "targets"
CHILDREN = {"failure", "error", "skipped"}
HOSTILE = "\x00\x1b[31m]]><b a='1'>&\"quot;\"\ud800\ufffe\U0001f600"


@pytest.fixture(scope="module")
def wrong() -> dict:
    name = f"{TARGETS / 'wrong.py'}:no_scale_function"
    return data(verify(load(name), name))


def suite(text: str) -> ElementTree.Element:
    """The one suite of a document, after the shape of the whole was checked."""
    root = ElementTree.fromstring(text.encode("utf-8"))  # noqa: S314 (we wrote it)
    assert root.tag == "testsuites"
    (found,) = root
    assert found.tag == "testsuite"
    assert found.get("file") in (None, *(case.get("file") for case in found))
    assert {case.tag for case in found} == {"testcase"}
    for case in found:
        assert {"classname", "name", "time"} <= set(case.keys())
        assert set(case.keys()) <= {"classname", "name", "time", "file", "line"}
        assert float(case.get("time")) >= 0
        assert len(case) <= 1
        assert {inside.tag for inside in case} <= CHILDREN
    for each in (root, found):
        counts = {key: int(each.get(key)) for key in ("tests", "failures", "errors", "skipped")}
        inside = {tag: len(found.findall(f"testcase/{tag}")) for tag in CHILDREN}
        assert counts["tests"] == len(found)
        assert counts["failures"] == inside["failure"]
        assert counts["errors"] == inside["error"]
        assert counts["skipped"] == inside["skipped"]
    return found


def test_a_case_for_every_check(wrong) -> None:
    found = suite(junit([wrong]))
    assert [case.get("name") for case in found] == [check.name for check in CONTRACT]
    failed = {c["check"] for c in wrong["checks"] if not c["passed"]}
    assert {case.get("name") for case in found if case.find("failure") is not None} == failed
    skipped = {c["check"] for c in wrong["checks"] if not c["trials"]}
    assert {case.get("name") for case in found if case.find("skipped") is not None} == skipped
    failure = found.find("testcase/failure")
    assert "no_scale: The scores are not divided" in failure.text
    assert "from wrong import no_scale_function" in failure.text


def test_times_and_files(wrong) -> None:
    seconds = {check["check"]: 0.25 + i for i, check in enumerate(wrong["checks"])}
    found = suite(junit([with_seconds(wrong, seconds)]))
    assert {case.get("name"): float(case.get("time")) for case in found} == seconds
    assert float(found.get("time")) == sum(seconds.values())
    assert {case.get("file") for case in found} == {relative(str(TARGETS / "wrong.py"))}
    line = (TARGETS / "wrong.py").read_text().splitlines()[int(found[0].get("line")) - 1]
    assert line.strip() == wrong["mistakes"][0][0]["line"]["text"]


def test_a_suite_for_each_target(wrong) -> None:
    stopped = unusable("other.py:f", BadFile(Translated("stopped", "已终止")))
    root = ElementTree.fromstring(junit([wrong, stopped]).encode())  # noqa: S314 (we wrote it)
    assert [found.get("name") for found in root] == [wrong["target"], "other.py:f"]
    assert [found.get("file") for found in root][1] == "other.py"
    for count in ("tests", "failures", "errors", "skipped"):
        assert int(root.get(count)) == sum(int(found.get(count)) for found in root)


def test_a_forbidden_use_is_a_failure(wrong) -> None:
    use = {"name": "torch.bmm", "how": "runs", "file": "a.py", "line": 3, "text": "torch.bmm(q, k)"}
    found = suite(junit([with_forbidden(wrong, [use])]))
    assert found[0].get("name") == "forbidden torch.bmm"
    assert "torch.bmm(q, k)" in found[0].find("failure").get("message")


def test_it_speaks_chinese(wrong) -> None:
    failure = suite(junit([wrong], "zh")).find("testcase/failure")
    assert failure.get("message").startswith("失败：")


def test_what_raised_is_an_error_and_a_mask_not_understood_a_failure(wrong) -> None:
    report = copy.deepcopy(wrong)
    report["checks"][0]["raised"] = True
    report["not_understood"] = ["attn_mask"]
    found = suite(junit([report]))
    assert found[0].find("error") is not None
    assert found[-1].get("name") == "mask argument attn_mask"
    assert found[-1].find("failure") is not None


def test_what_is_unusable_is_one_error() -> None:
    found = suite(junit([unusable("f.py:f", BadFile(Translated("stopped", "已终止")))]))
    (case,) = found
    assert case.find("error").get("message") == "not verified: stopped"


def test_hostile_words_are_harmless(wrong) -> None:
    report = copy.deepcopy(wrong)
    report["target"] = HOSTILE
    report["checks"][0]["failed"] = HOSTILE
    report["checks"][0]["smallest"] = HOSTILE
    text = junit([report])
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", text)
    found = suite(text)
    assert "<b a='1'>&\"quot;\"" in found[0].find("failure").text
    assert "<b a='1'>&\"quot;\"" in found.get("name")


@given(st.text(st.characters(codec=None)))
def test_any_words_give_a_document(words: str) -> None:
    (case,) = suite(junit([unusable(words, BadFile(same(words)))]))
    assert case.find("error") is not None
