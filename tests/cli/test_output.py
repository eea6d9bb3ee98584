"""The output of the commands, output that cannot be written, and the help of every command."""

import os
import subprocess
import sys

import pytest

from headwise.cli import main
from headwise.cli.commands import COMMANDS


@pytest.fixture(autouse=True)
def _english(monkeypatch):
    monkeypatch.setenv("HEADWISE_LANG", "en")


def fresh(shell: str, **environment: str) -> tuple[int, str]:
    """The status and stderr of a fresh process; ``$HEADWISE`` runs the command line."""
    done = subprocess.run(
        ["bash", "-c", shell],
        env={**os.environ, "HEADWISE": f"{sys.executable} -m headwise", **environment},
        capture_output=True,
        timeout=60,
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    ("shell", "said"),
    [
        ("$HEADWISE --help >&-", "stdout: expected an open stream, got a closed stream"),
        ("$HEADWISE --version > /dev/full", "stdout: cannot write: No space left on device"),
        ("$HEADWISE models list > /dev/full", "stdout: cannot write: No space left on device"),
        ("$HEADWISE show > /dev/full", "stdout: cannot write: No space left on device"),
        ("$HEADWISE show >&-", "stdout: expected an open stream, got a closed stream"),
    ],
)
def test_a_stdout_that_takes_nothing_is_one_line_and_status_2(shell, said):
    status, err = fresh(shell)
    assert status == 2
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1


def test_an_encoding_that_lacks_a_character_is_refused_before_anything_is_out(tmp_path):
    status, err = fresh(
        f"$HEADWISE --lang zh --help > {tmp_path}/out", PYTHONIOENCODING="latin-1", PYTHONUTF8="0"
    )
    assert status == 2
    assert err.count("\n") == 1
    assert "PYTHONUTF8=1" in err
    assert (tmp_path / "out").read_bytes() == b""


def test_a_reader_who_leaves_is_no_error():
    assert fresh("set -o pipefail; $HEADWISE --help | true") == (0, "")


def test_nobody_to_hear_an_error_changes_no_status():
    assert fresh("$HEADWISE nonsense 2> /dev/full") == (2, "")
    assert fresh("$HEADWISE nonsense 2>&-") == (2, "")


@pytest.mark.parametrize("words", [[], ["models"]])
@pytest.mark.parametrize(("lang", "usage"), [("en", "Usage:"), ("zh", "用法：")])
def test_without_a_word_the_help_is_shown_as_help(capsys, words, lang, usage):
    assert main([*words, "--lang", lang]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.replace(" ", "").startswith(f"{usage}headwise")
    assert len(err.splitlines()) > 5


@pytest.mark.parametrize("words", [*([word] for word in COMMANDS), ["models", "list"], []])
def test_help_is_in_the_readers_language(capsys, words):
    assert main([*words, "--help", "--lang", "zh"]) == 0
    out = capsys.readouterr().out
    assert "显示此帮助并退出。" in out
    assert main([*words, "--help"]) == 0
    assert "Show this message and exit." in capsys.readouterr().out


def test_an_unknown_language_is_refused_wherever_it_comes_from(capsys, monkeypatch):
    monkeypatch.setenv("HEADWISE_LANG", "xx")
    assert main(["--version"]) == 2
    assert "HEADWISE_LANG: 'xx' is not one of 'en', 'zh'" in capsys.readouterr().err
    assert main(["--version", "--lang", "zh"]) == 0
    assert main(["--version", "--lang", "yy"]) == 2
    assert "--lang: 'yy' is not one of" in capsys.readouterr().err


def test_an_output_that_is_an_input_is_left_as_it_is(capsys, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1,2\n3,4\n")
    for option in ("--x", "--mask", "--bias", "--tokens", "--weights"):
        assert main(["explain", option, str(path), "--output", str(path)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: output: expected a file that is not an input")
    words = ["inspect", "./no-model", "--text", str(path), "--output", str(path)]
    assert main(words) == 2
    assert "expected a file that is not an input" in capsys.readouterr().err
    named = tmp_path / "a.safetensors"
    named.touch()
    assert main(["explain", "--x", f"{named}:q", "--output", str(named)]) == 2
    assert "expected a file that is not an input" in capsys.readouterr().err
    assert path.read_text() == "1,2\n3,4\n"


def test_a_mask_of_true_and_false_is_read_from_json(capsys, tmp_path):
    rows = [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    outputs = []
    for name, text in (("a", str(rows)), ("b", str([[bool(c) for c in r] for r in rows]).lower())):
        path = tmp_path / f"{name}.json"
        path.write_text(text)
        assert main(["explain", "--mask", str(path)]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("words", [["a", "  "], ["a", "x", "--heads", "H"]])
def test_inspect_refuses_what_it_can_before_a_model_is_loaded(capsys, monkeypatch, words):
    def load(*_: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("headwise.heads.models.load.load", load)
    assert main(["inspect", *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")
