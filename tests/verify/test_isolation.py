"""A target that hangs, exits, crashes or exceeds a limit ends with an error that says where."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headwise import __version__
from headwise.errors import BadFile
from headwise.verify.process import Limits, Request, Stopped, isolated, search
from headwise.verify.process.messages import ProcessState, error_of, read
from headwise.verify.report.formats import faults
from headwise.verify.target import NotRecognised

HOSTILE = Path(__file__).parent / "hostile.py"
LIMITS = Limits(seconds=1.5, memory=600, output=100_000, wall=3)
UNHURRIED = replace(LIMITS, wall=60)  # this machine may be busy
CPU, WALL = "在用去 1.5 秒 CPU 时间后被终止", "在 3 秒后被终止"


def line_of(words: str) -> int:
    return HOSTILE.read_text().splitlines().index(words) + 1


def verify(name: str, limits: Limits = LIMITS, **given):
    return isolated(Request(f"{HOSTILE}:{name}"), limits, **given)


MADE = line_of("class Sleeps(nn.MultiheadAttention):")
FIRST = "in call 1, q (2, 3, 7, 5), k (2, 3, 7, 5), v (2, 3, 7, 5)"


@pytest.mark.parametrize(
    ("name", "en", "zh", "where"),
    [
        ("forever", "was stopped after 1.5 s of CPU time (--time-limit)", CPU, FIRST),
        ("leaves", "ended the process itself, with status 7", "自行结束了进程，状态 7", FIRST),
        pytest.param(
            "exits", "raises SystemExit: 3", "抛出 SystemExit: 3", FIRST, marks=pytest.mark.slow
        ),
        ("floods", "printed more than 100000 bytes and was stopped", "打印超过", FIRST),
        ("crashes", "crashed with SIGSEGV", "因 SIGSEGV 崩溃", FIRST),
        ("late", "was stopped after 3 s (--wall-limit)", WALL, "in call 6, q ("),
        ("Sleeps", "was stopped after", WALL, f"while it was constructed at line {MADE + 2};"),
        pytest.param(
            "forges",
            "ended the process itself, with status 0",
            "自行结束了进程",
            FIRST,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_does_not_return_is_stopped_and_told_where(name, en, zh, where) -> None:
    with pytest.raises(Stopped, match="expected it to return") as caught:
        verify(name, LIMITS if zh == WALL else UNHURRIED)
    assert f"{HOSTILE}:{name} {en}" in caught.value.text.en
    assert where in caught.value.text.en
    assert f"{HOSTILE}:{name} {zh}" in caught.value.text.zh


def state_of(**given) -> ProcessState:
    return ProcessState(Request("mine.py:f", **given), Limits(), nonce="secret")


REPORT = {
    "schema": 3,
    "headwise": __version__,
    "target": "mine.py:f",
    "status": "unusable",
    "accepted": False,
    "error": {"en": "", "zh": ""},
}
OTHERS = ({"target": "other.py:f"}, {"headwise": "0.0"}, {"seed": 1})


def line_with(report: dict, nonce: str = "secret ") -> bytes:
    return f"{nonce}{json.dumps({'report': report})}\n".encode()


def test_a_report_on_its_own_target_is_taken() -> None:
    state = state_of()
    read(state, line_with(REPORT))
    assert (state.final, state.ended) == ({"report": REPORT}, "")


@pytest.mark.parametrize("changed", OTHERS, ids=str)
def test_a_report_on_another_target_is_refused(changed: dict) -> None:
    state = state_of()
    read(state, line_with({**REPORT, **changed}))
    assert (state.final, state.ended) == ({}, "refused")
    error = error_of(state, 0)
    assert f"{next(iter(changed.values()))}" in error.text.en
    assert "the report is refused" in error.text.en
    assert "不予采用" in error.text.zh


def test_a_report_without_the_token_of_the_run_is_refused() -> None:
    state = state_of()
    read(state, line_with(REPORT, nonce=""))
    assert (state.final, state.ended) == ({}, "refused")
    assert "wrote a message of its own where headwise writes" in error_of(state, 0).text.en


def test_a_report_with_another_token_is_no_message() -> None:
    state = state_of()
    read(state, line_with(REPORT, nonce="public "))
    assert (state.final, state.ended) == ({}, "")


def test_a_forged_report_in_the_pipe_is_refused() -> None:
    with pytest.raises(Stopped, match="where headwise writes its report; the report is refused"):
        verify("forges_a_report", Limits(seconds=60))


@pytest.mark.slow
def test_time_that_a_target_waits_is_no_cpu_time() -> None:
    """It waits for longer than its CPU time, as on a machine that is busy."""
    limits = Limits(seconds=5, wall=120)
    start = time.monotonic()
    assert verify("waits", limits)["status"] == "accepted"
    assert time.monotonic() - start > 2


@pytest.mark.parametrize(("given", "expected"), [({}, 600.0), ({"wall": 7}, 7.0)])
def test_the_wall_limit_is_five_times_that_of_the_cpu(given: dict, expected: float) -> None:
    assert Limits(**given).wall_seconds == expected


def test_a_cancelled_run_is_stopped() -> None:
    heard: list[str] = []
    with pytest.raises(Stopped, match="was stopped together with headwise"):
        verify("sleeps", Limits(), progress=heard.append, cancelled=lambda: True)


@pytest.mark.slow
def test_the_search_of_a_file_ends_like_a_target(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text("def attend(q, k, v):\n    while True:\n        pass\n")
    names: list[str] = []
    with pytest.raises(
        Stopped, match=r"after 1 s of CPU time .* while its attend was tried at line [23];"
    ):
        search(file, Request(""), Limits(seconds=1, wall=60), progress=names.append)
    assert names == ["attend"]
    found = search(file, Request(""), Limits(seconds=30), skip=("attend",))
    assert found == {"found": [], "refused": [], "others": []}


@pytest.mark.skipif(os.name != "posix", reason="a limit on memory is a thing of POSIX")
def test_memory_has_a_limit() -> None:
    with pytest.raises(BadFile, match=r"ran out of memory: in call 1, .*, 600 MiB") as caught:
        verify("grows", Limits(seconds=60, memory=600))
    assert "内存不足" in caught.value.text.zh


def test_an_endless_import_is_stopped(tmp_path: Path) -> None:
    file = tmp_path / "endless.py"
    file.write_text("import time\ntime.sleep(1000)\n")
    with pytest.raises(Stopped, match=r"was stopped after 3 s .* while it was imported at line"):
        isolated(Request(f"{file}:f"), LIMITS)


@pytest.mark.slow
def test_a_constructor_that_raises_shows_the_adapter() -> None:
    with pytest.raises(NotRecognised, match="raises RuntimeError: no room"):
        verify("Refuses")


def test_what_does_not_load_is_a_bad_file_and_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="is no Python file") as caught:
        isolated(Request(f"{tmp_path / 'none.py'}:f"))
    assert not isinstance(caught.value, NotRecognised | Stopped)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_nothing_of_it_is_left_running_and_it_does_not_wait() -> None:
    assert verify("forks", Limits(seconds=60))["accepted"] is False


def test_it_works_in_a_folder_of_its_own_that_is_gone_afterwards() -> None:
    heard, names = [], []
    found = verify("writes", Limits(seconds=60), on_output=heard.append, progress=names.append)
    assert faults(found) == []
    assert found["status"] == "differs"
    folder = Path(heard[0].splitlines()[0].removeprefix("written in "))
    assert folder.name.startswith("headwise-")
    assert folder != Path.cwd()
    assert not folder.exists()
    assert "module_forward" in names
