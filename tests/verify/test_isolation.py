"""A target that hangs, leaves, crashes or takes too much ends as a message that says where."""

import os
from pathlib import Path

import pytest

from headwise.errors import BadFile
from headwise.verify.process import Limits, Request, Stopped, isolated
from headwise.verify.report.formats import faults
from headwise.verify.target import NotRecognised

HOSTILE = Path(__file__).parent / "hostile.py"
LIMITS = Limits(seconds=1.5, memory=600, output=100_000)


def line_of(words: str) -> int:
    return HOSTILE.read_text().splitlines().index(words) + 1


def verify(name: str, limits: Limits = LIMITS, **given):
    return isolated(Request(f"{HOSTILE}:{name}"), limits, **given)


MADE = line_of("class Sleeps(nn.MultiheadAttention):")
FIRST = "in call 1, q (2, 3, 7, 5), k (2, 3, 7, 5), v (2, 3, 7, 5)"


@pytest.mark.parametrize(
    ("name", "en", "zh", "where"),
    [
        ("forever", "was stopped after 1.5 s (--time-limit)", "在 1.5 秒后被终止", FIRST),
        ("leaves", "ended the process itself, with status 7", "自行结束了进程，状态 7", FIRST),
        pytest.param(
            "exits", "raises SystemExit: 3", "抛出 SystemExit: 3", FIRST, marks=pytest.mark.slow
        ),
        ("floods", "printed more than 100000 bytes and was stopped", "打印超过", FIRST),
        ("crashes", "crashed with SIGSEGV", "因 SIGSEGV 崩溃", FIRST),
        ("late", "was stopped after", "在 1.5 秒后被终止", "in call 6, q ("),
        (
            "Sleeps",
            "was stopped after",
            "在 1.5 秒后被终止",
            f"while it was constructed at line {MADE + 2};",
        ),
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
        verify(name)
    assert f"{HOSTILE}:{name} {en}" in caught.value.text.en
    assert where in caught.value.text.en
    assert f"{HOSTILE}:{name} {zh}" in caught.value.text.zh


@pytest.mark.skipif(os.name != "posix", reason="a limit on memory is a thing of POSIX")
def test_memory_has_a_limit() -> None:
    with pytest.raises(BadFile, match=r"ran out of memory: in call 1, .*, 600 MiB") as caught:
        verify("grows", Limits(seconds=60, memory=600))
    assert "内存不足" in caught.value.text.zh


def test_an_endless_import_is_stopped(tmp_path: Path) -> None:
    file = tmp_path / "endless.py"
    file.write_text("import time\ntime.sleep(1000)\n")
    with pytest.raises(Stopped, match=r"was stopped after 1\.5 s .* while it was imported at line"):
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
