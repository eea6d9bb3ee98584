"""Many targets: every file has its row, whatever the others do; a killed run is resumed."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwise.errors import BadFile, BadValue
from headwise.lang import Translated
from headwise.verify import submissions
from headwise.verify.process import Limits, Request, Stopped
from headwise.verify.report import unusable
from headwise.verify.submissions import verify_all
from headwise.verify.submissions.journal import Journal
from headwise.verify.submissions.results import COLUMNS, Results
from tests.verify.submissions.sixty import BAD, write


class Fakes:
    """`search` and `isolated` without processes: every file holds two attentions."""

    def __init__(self, monkeypatch) -> None:
        self.verified: list[str] = []
        self.searched: list[str] = []
        self.after = -1
        monkeypatch.setattr(submissions, "search", self.search)
        monkeypatch.setattr(submissions, "isolated", self.isolated)

    def search(self, file, request, limits, *, skip, progress, cancelled) -> dict:
        self.searched.append(Path(file).name)
        if "hangs" in Path(file).name and "Second" not in skip:
            progress("First")
            progress("Second")
            raise Stopped(Translated("was stopped", "被终止"))
        if "broken" in Path(file).name:
            raise BadFile(Translated("does not import", "无法导入"))
        names = [name for name in ("First", "Second") if name not in skip]
        return {"found": names, "refused": [], "others": []}

    def isolated(self, request, limits, *, cancelled) -> dict:
        if len(self.verified) == self.after:
            raise KeyboardInterrupt
        self.verified.append(request.target)
        return unusable(request.target, BadFile(Translated("no", "否")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "class"
    inside.mkdir()
    for name in "abcdef":
        (inside / f"{name}.py").write_text(f"x = '{name}'\n")
    return inside


def rows(results: Results) -> list[str]:
    return [Path(report["target"]).name for report in results.reports]


def test_the_rows_are_in_the_order_of_the_files_whatever_runs_first(folder, monkeypatch) -> None:
    Fakes(monkeypatch)
    expected = [f"{name}.py:{which}" for name in "abcdef" for which in ("First", "Second")]
    assert rows(verify_all([folder], jobs=4)) == expected
    assert rows(verify_all([folder], jobs=1)) == expected


def test_progress_counts_files(folder, monkeypatch) -> None:
    Fakes(monkeypatch)
    seen: list[tuple[int, int]] = []
    verify_all([folder], jobs=2, progress=lambda *of: seen.append(of))
    assert seen == [(done, 6) for done in range(1, 7)]


def test_a_file_that_does_not_load_has_a_row_and_the_others_theirs(folder, monkeypatch) -> None:
    Fakes(monkeypatch)
    (folder / "broken.py").write_text("")
    results = verify_all([folder])
    assert len(results.reports) == 13
    (row,) = (row for row in results.rows("zh") if row["file"].endswith("broken.py"))
    assert (row["name"], row["status"], row["verdict"]) == ("", "unusable", "未能验证：无法导入")


def test_a_name_that_ends_the_search_is_left_out_of_it_and_has_a_row(folder, monkeypatch) -> None:
    fakes = Fakes(monkeypatch)
    (folder / "hangs.py").write_text("")
    results = verify_all([folder / "hangs.py"])
    assert rows(results) == ["hangs.py:First", "hangs.py:Second"]
    assert results.reports[1]["error"]["en"] == "was stopped"
    assert fakes.searched == ["hangs.py", "hangs.py"]
    assert len(fakes.verified) == 1


@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_an_interrupted_run_is_resumed_and_equals_a_whole_one(
    folder, monkeypatch, tmp_path, after: int
) -> None:
    fakes, journal = Fakes(monkeypatch), tmp_path / "marks.csv.journal"
    whole = verify_all([folder])
    fakes.verified.clear()
    fakes.after = after
    with pytest.raises(KeyboardInterrupt):
        verify_all([folder], jobs=1, journal=journal)
    with journal.open("ab") as file:  # a line that was being written
        file.write(b'{"report 0123": {"schema": 3, "head')
    fakes.after = -1
    resumed = verify_all([folder], jobs=1, journal=journal)
    assert resumed.csv() == whole.csv()
    assert json.dumps(resumed.data()) == json.dumps(whole.data())
    assert len(fakes.verified) == len(set(fakes.verified)) == 12


def test_a_result_is_not_taken_if_files_or_options_have_changed(folder, monkeypatch, tmp_path):
    fakes, journal = Fakes(monkeypatch), tmp_path / "journal"

    def verified(**given) -> set[str]:
        fakes.verified.clear()
        verify_all([folder], journal=journal, **given)
        return {Path(target).name[0] for target in fakes.verified}

    assert verified() == set("abcdef")
    assert verified() == set()
    (folder / "c.py").write_text("changed = 1\n")
    assert verified() == {"c"}
    for request in (Request("", seed=1), Request("", forbid=("torch.bmm",))):
        assert verified(request=request) == set("abcdef")
    assert verified(limits=Limits(seconds=7)) == set("abcdef")


DAMAGED = (
    b"",
    b"\xff\xfe",
    b"[]",
    b'{"report a": {}}',
    b'{"a": 1, "b": 2}',
    b'{"attentions a": 1}',
)


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_journal_gives_no_result(folder, monkeypatch, tmp_path, content) -> None:
    Fakes(monkeypatch)
    (tmp_path / "journal").write_bytes(content + b"\n")
    assert len(verify_all([folder], journal=tmp_path / "journal").reports) == 12


def test_a_journal_that_cannot_be_written_or_is_too_large_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(BadFile, match="expected a file, got the directory"):
        Journal(tmp_path, Request(""), Limits())
    (tmp_path / "large").write_bytes(b"12345678")
    monkeypatch.setattr("headwise.verify.submissions.journal.LARGEST", 7)
    with pytest.raises(BadFile, match="large is too large; delete it"):
        Journal(tmp_path / "large", Request(""), Limits())


def test_arguments_are_checked_before_anything_runs(folder, monkeypatch) -> None:
    fakes = Fakes(monkeypatch)
    with pytest.raises(BadValue, match="jobs: expected 1 or more, got 0"):
        verify_all([folder], jobs=0)
    with pytest.raises(
        BadValue, match=r"forbid: expected a class or function .*'torch\.nn\.Nothing'"
    ):
        verify_all([folder], request=Request("", forbid=("torch.nn.Nothing",)))
    assert fakes.searched == []


HOSTILE = "=cmd|' /C calc'!A0<script>alert(1)</script>\x1b[31m\n.py"


def test_hostile_names_are_harmless_in_every_format() -> None:
    from headwise.document import html, markdown, terminal

    results = Results((unusable(HOSTILE, BadFile(Translated(HOSTILE, HOSTILE))),))
    (row,) = csv.DictReader(io.StringIO(results.csv()))
    assert row["target"] == f"'{HOSTILE}"
    assert tuple(row) == COLUMNS
    shown = results._repr_html_()
    for text in (shown, html.render(results.document())):
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text
    for text in (
        shown,
        markdown.render(results.document()),
        terminal.render(results.document(), color=False, width=100),
    ):
        assert "\x1b" not in text


def test_the_document_counts_and_explains_what_is_wrong() -> None:
    results = Results((unusable("a.py:A", BadFile(Translated("stopped", "已终止"))),))
    blocks = results.document().blocks
    assert "1 targets: 0 accepted" in blocks[0].text.en
    assert "1 个没有结论" in blocks[0].text.zh
    assert [row[1].zh for row in blocks[1].rows] == ["没有结论"]
    assert any("stopped" in getattr(block, "text", Translated("", "")).en for block in blocks[2:])


@pytest.mark.slow
@pytest.mark.parametrize("page", ["verify_many.md", "verify_many.zh.md"])
def test_the_page_runs(page: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], page, "exec"), {})  # noqa: S102 (it is ours)
    assert [name for name in COLUMNS if f"`{name}`" not in text] == []


def command(folder: Path, output: Path, *words: str) -> subprocess.Popen[bytes]:
    limits = ("--time-limit", "20", "--wall-limit", "40", "--lang", "en")
    names = (sys.executable, "-m", "headwise", "verify", str(folder), "--output", str(output))
    return subprocess.Popen((*names, *limits, *words), stderr=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a limit of CPU time needs POSIX")
def test_sixty_files_one_table_and_a_killed_run_equals_a_whole_one(tmp_path: Path) -> None:
    folder = tmp_path / "class"
    folder.mkdir()
    kinds = write(folder)
    whole, killed = tmp_path / "whole.csv", tmp_path / "killed.csv"
    assert command(folder, whole).wait() == 1
    journal = tmp_path / "killed.csv.journal"
    run = command(folder, killed)
    while not journal.exists() or journal.read_bytes().count(b'"report ') < 10:
        time.sleep(0.2)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert not killed.exists()
    assert command(folder, killed).wait() == 1
    assert killed.read_bytes() == whole.read_bytes()
    assert not journal.exists()
    table = list(csv.DictReader(whole.read_text(encoding="utf-8").splitlines()))
    assert [Path(row["file"]).name for row in table] == sorted(kinds)
    for row in table:
        kind = kinds[Path(row["file"]).name]
        if kind == "bad":
            assert row["status"] == "unusable", row
        else:
            assert (row["status"] == "accepted") == (kind == "right"), row
            assert (kind in row["mistakes"]) == (kind != "right"), row
    assert sum(row["status"] == "unusable" for row in table) == len(BAD)
