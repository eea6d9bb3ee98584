"""The command ``headwise demo``: its report opens in a browser in both languages."""

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from headwise.cli import main
from headwise.cli.demo import NEEDED, REPORT, _checked
from headwise.document import Code
from tests.browser import open_page


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "headwise", "--lang", "en", "demo"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("headwise: ")] == []
    return folder / REPORT, done.stdout


@pytest.mark.slow
def test_it_prints_what_it_found_and_where_the_report_is(demo):
    path, said = demo
    assert said.rstrip().endswith(str(path.resolve()))
    for expected in ("0.8470  0.8722", "2 wrong", "accepted: equal to the oracle", "L0H2"):
        assert expected in said
    assert "Attention weights" not in said


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(
    ("language", "shown"), [("en", ("Step 5", "Highlights on")), ("zh", ("第 5 步", "突出"))]
)
def test_the_report_opens_without_an_error_in_each_language(demo, language, shown):
    dom, errors = open_page(demo[0], language)
    assert errors == []
    assert re.search(rf'<html[^>]*lang="{language}', dom)
    for text in (*shown, "as_torch", "L0H2", "L1H8"):
        assert text in dom
    assert dom.count("<canvas") >= 3


@pytest.mark.slow
def test_the_report_needs_nothing_from_outside(demo):
    page = demo[0].read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!#)', page)
    assert "default-src 'none'" in unescape(page)
    blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        json.loads(block)


def refuse() -> None:
    raise AssertionError("it began to work")


def test_a_place_that_cannot_be_is_refused_before_any_work(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("headwise.cli.demo._explained", refuse)
    words = ["demo", "--lang", "en", "--output", str(tmp_path / "no" / "a.html")]
    assert main(words) == 2
    assert "expected a file in an existing folder" in capsys.readouterr().err


@pytest.mark.parametrize("gone", [package for package, _ in NEEDED])
def test_a_missing_package_is_named_before_any_work(capsys, monkeypatch, tmp_path, gone):
    monkeypatch.setattr("headwise.cli.demo._explained", refuse)
    monkeypatch.setattr("headwise.cli.demo.find_spec", lambda name: None if name == gone else name)
    assert main(["demo", "--lang", "en", "--output", str(tmp_path / "a.html")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: this needs the package '{gone}'; install it with: pip install")
    assert list(tmp_path.iterdir()) == []


def test_the_report_shows_the_article_that_is_checked_with_its_lines():
    whole, shown = _checked()
    code = whole.blocks[0]
    assert isinstance(code, Code)
    assert code.language == "markdown"
    assert code.source.splitlines()[17] == next(
        line for line in code.source.splitlines() if line.startswith(" 18  ") and "0.83" in line
    )
    assert list(whole.blocks[1:]) == list(shown.blocks)
