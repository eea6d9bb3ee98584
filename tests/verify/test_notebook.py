"""What a notebook shows for a report: one language, escaped."""

import sys
from pathlib import Path

from headwise.document import Document, Heading, Notice, Table
from headwise.lang import Text, same
from headwise.verify import verify
from headwise.verify.report.notebook import in_notebook
from headwise.verify.target import load

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J</section><script>1</script>"


def test_a_report_shows_its_verdict_and_its_mistake() -> None:
    name = f"{Path(__file__).parent / 'targets' / 'wrong.py'}:no_scale_function"
    shown = verify(load(name), name)._repr_html_()
    assert shown is not None
    assert "no_scale: The scores are not divided" in shown
    assert "the first step that differs: scale" in shown
    assert "得分" not in shown
    assert "<style" not in shown
    assert "<script" not in shown


def test_names_are_escaped() -> None:
    def attend(q, k, v):
        return v

    shown = verify(attend, HOSTILE)._repr_html_()
    assert shown is not None
    assert "<img" not in shown
    assert "<script" not in shown
    assert "\x1b" not in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown


def test_one_language_at_a_time() -> None:
    blocks = (Heading(Text("Checks")), Notice(True, Text("accepted")))
    document = Document(same("x"), (*blocks, Table((Text("result"),), ((Text("passes"),),))))
    zh = in_notebook(document, "zh")
    assert zh is not None
    for word in ("检查", "通过"):
        assert word in zh
    for word in ("Checks", "accepted", "passes", "lang="):
        assert word not in zh


def test_without_the_extra_the_notebook_shows_text(monkeypatch) -> None:
    from headwise.document import html

    html._templates.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert in_notebook(Document(same("x"), ())) is None
    html._templates.cache_clear()
