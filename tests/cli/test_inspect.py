"""The command ``headwise inspect``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headwise.cli import BAD_INPUT, main
from tests.heads.tiny import HOSTILE, saved

SENTENCE = "the cat sat on a mat"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("models") / "tiny"))


def run(*words: str, lang: str = "en") -> int:
    return main(["--lang", lang, "inspect", *words])


@pytest.mark.parametrize(("lang", "said"), [("en", "The heads of"), ("zh", "的注意力头")])
def test_it_prints_a_report(
    model: str, capsys: pytest.CaptureFixture[str], lang: str, said: str
) -> None:
    assert run(model, SENTENCE, lang=lang) == 0
    out, err = capsys.readouterr()
    assert said in out
    assert "L1H2" in out
    assert len(err.splitlines()) == 2
    assert all(line.endswith("…") for line in err.splitlines())


def test_json_alone_is_on_stdout(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(model, SENTENCE, "--heads", "L0H2", "--format", "json") == 0
    found = json.loads(capfd.readouterr().out)
    assert [drawn["head"] for drawn in found["weights"]] == ["L0H2"]


@pytest.mark.parametrize("words", ["all", "ALL", "L0H0,L0H1,L0H2,L1H0,L1H1,L1H2"])
def test_all_heads(model: str, capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert run(model, SENTENCE, "--heads", words, "--format", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["weights"]) == 6


def test_markdown(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, SENTENCE, "--format", "markdown") == 0
    assert capsys.readouterr().out.startswith("# The heads of")


def test_html_goes_to_a_file_whole(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "heads.html"
    assert run(model, SENTENCE, "--format", "html", "--output", str(file)) == 0
    out, err = capsys.readouterr()
    assert not out
    assert f"written: {file}" in err
    page = file.read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert "的注意力头" in page
    assert list(tmp_path.iterdir()) == [file]


def test_the_text_may_come_from_a_file(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\ufeff" + SENTENCE, encoding="utf-8")
    assert run(model, "--text", str(file), "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["text"] == SENTENCE


def test_hostile_tokens_do_nothing(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "markdown", "html"):
        assert run(model, " ".join(HOSTILE), "--heads", "all", "--format", form) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\u202e" not in out
    assert "<b>bold" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected exactly one of a sentence, --text FILE, --corpus FILE, --probe and"),
        ([SENTENCE, "--text", "a.txt"], "--open DIR, got SENTENCE and --text; write"),
        ([""], "sentence: expected some text, got an empty one"),
        ([" ".join(["cat"] * 41)], "43 tokens, but"),
        ([SENTENCE, "--heads", "L9H0"], "heads: L9H0 does not exist"),
        ([SENTENCE, "--heads", "nonsense"], "heads: expected names such as L0H2"),
        ([SENTENCE, "--heads", ""], "heads: expected names such as L0H2"),
        ([SENTENCE, "--format", "pdf"], "'pdf'"),
        ([SENTENCE, "--output", "/no/such/folder/a.html"], "output: expected a file in an exist"),
        (
            [SENTENCE, "--output", "/"],
            "output: expected a file, got the directory /; add a file name",
        ),
        (["--text", "/no/such/file"], "text: cannot read /no/such/file: No such file"),
        (["--text", "/"], "text: expected a file, got /, a directory, device or pipe"),
        (["--text", "/dev/zero"], "text: expected a file, got /dev/zero, a directory, device"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    model: str, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(model, *words) == BAD_INPUT
    out, err = capsys.readouterr()
    assert not out
    assert said in err
    errors = [line for line in err.splitlines() if not line.endswith("…")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")


def test_truncate_is_the_way_out(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, " ".join(["cat"] * 41), "--truncate") == 0
    assert "The text has 43 tokens and was truncated" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"\xff\xfe\x00binary", b"a" * (2 << 20)], ids=["junk", "big"])
def test_a_file_that_is_no_text_is_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(content)
    assert run(model, "--text", str(file)) == BAD_INPUT
    said = capsys.readouterr().err
    assert "not UTF-8 text" in said or "at most 1048576 bytes" in said


def test_what_is_no_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path), SENTENCE) == BAD_INPUT
    assert "has no config.json" in capsys.readouterr().err
    assert run("./nowhere", SENTENCE) == BAD_INPUT
    assert "is not a directory; give a directory" in capsys.readouterr().err


def test_chinese_errors(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, SENTENCE, "--heads", "L9H0", lang="zh") == BAD_INPUT
    assert "错误：heads：不存在 L9H0" in capsys.readouterr().err


def test_stdout_of_a_fresh_process_is_the_answer_alone(model: str) -> None:
    """Warnings of the libraries underneath, if any, are not on stdout."""
    words = ["--lang", "en", "inspect", model, SENTENCE, "--format", "json"]
    code = "import sys; from headwise.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "headwise.inspect/1"
    assert [line for line in done.stderr.splitlines() if not line.endswith("…")] == []
