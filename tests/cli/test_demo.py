"""`headwise demo` on a real model: one report that opens in a browser in both languages."""

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from headwise.cli.demo import REPORT
from tests.browser import open_page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "headwise", "--lang", "en", "demo"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("headwise: ")] == []
    return folder / REPORT, done.stdout


def test_it_prints_what_it_found_and_where_the_report_is(demo):
    path, said = demo
    assert said.rstrip().endswith(str(path.resolve()))
    for expected in ("0.8470  0.8722", "2 wrong", "accepted: equal to the oracle", "L0H2"):
        assert expected in said


@pytest.mark.browser
@pytest.mark.parametrize(
    ("language", "shown"),
    [("en", ("Step 5", "What stands out")), ("zh", ("第 5 步", "突出"))],
)
def test_the_report_opens_without_an_error_in_each_language(demo, language, shown):
    dom, errors = open_page(demo[0], language)
    assert errors == []
    assert re.search(rf'<html[^>]*lang="{language}', dom)
    for text in (*shown, "as_torch", "L0H2", "L1H8"):
        assert text in dom
    assert dom.count("<canvas") >= 3


def test_the_report_needs_nothing_from_outside(demo):
    page = demo[0].read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!#)', page)
    assert "default-src 'none'" in unescape(page)
    blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        json.loads(block)
