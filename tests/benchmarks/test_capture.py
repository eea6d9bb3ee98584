"""The results of benchmarks.capture on the page: medians, ratios and failures."""

from pathlib import Path

import pytest

from benchmarks import capture
from benchmarks.capture import CAPTURE, EAGER, MARKS, PLAIN, table

RUNS = {
    PLAIN: [{"seconds": s, "processor": 4.0, "bytes": 100e6} for s in (9.0, 2.0, 1.0)],
    CAPTURE: [{"seconds": 5.0, "processor": 9.0, "bytes": 140e6}],
    EAGER: "RuntimeError: not enough memory",
}


def test_medians_and_their_ratios_with_the_limits() -> None:
    text = table(RUNS, 8192, 3)
    assert "3 of 30 layers with 9 heads each, 8192 tokens" in text
    assert "| plain | 2.0 | 4.0 | 100 |" in text
    assert "| capture / plain | 2.50 (limit 上限 2.5) | 2.25 | 1.40 (limit 上限 1.3) |" in text
    assert "failed 失败: RuntimeError: not enough memory" in text


def test_figures_stand_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n")
    monkeypatch.setattr(capture, "PAGES", (page,))
    capture.write("new")
    capture.write("newer")
    assert page.read_text() == f"before\n{MARKS[0]}\n\nnewer\n\n{MARKS[1]}\nafter\n"


@pytest.mark.parametrize("page", capture.PAGES, ids=lambda page: page.name)
def test_both_pages_have_a_place_for_the_figures(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.index(MARKS[0]) < text.index(MARKS[1])
