"""The command ``headwise verify``: exit status, formats, and one line for invalid arguments."""

import csv
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headwise.cli import main
from headwise.verify.process import Request, isolated
from headwise.verify.report.formats import faults

TARGETS = Path(__file__).parent.parent / "verify" / "targets"
RIGHT, WRONG = f"{TARGETS / 'right.py'}:PerHead", f"{TARGETS / 'wrong.py'}:no_scale_function"


@pytest.fixture(scope="module")
def reports() -> dict[str, dict]:
    """What the process of each target reports, once; every format is drawn from it."""
    return {target: isolated(Request(target)) for target in (RIGHT, WRONG)}


@pytest.fixture
def replayed(reports, monkeypatch) -> None:
    from headwise.verify import process as isolation

    monkeypatch.setattr(isolation, "isolated", lambda asked, *_, **__: reports[asked.target])


def test_accepted_is_status_0(capsys) -> None:
    assert main(["--lang", "en", "verify", RIGHT]) == 0
    said = capsys.readouterr().out
    assert "accepted" in said
    assert "runs the code of the target" in said


@pytest.mark.parametrize(
    ("lang", "words"),
    [("en", "first step that differs: scale"), ("zh", "首先出现差异的步骤：scale")],
)
def test_wrong_is_status_1_and_names_step_and_mistake(
    replayed, capsys, lang: str, words: str
) -> None:
    assert main(["--lang", lang, "verify", WRONG]) == 1
    said = capsys.readouterr().out
    assert words in said
    assert "no_scale" in said
    assert "/ math.sqrt(head_dim)" in said


def test_json_is_strict_and_complete(replayed, capsys) -> None:
    assert main(["verify", WRONG, "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["accepted"] is False
    assert found["step"] == "scale"
    assert "no_scale" in [mistake["name"] for group in found["mistakes"] for mistake in group]
    assert faults(found) == []


@pytest.mark.parametrize(
    ("suffix", "start"), [("md", "#"), ("html", "<!"), ("json", "{"), ("txt", "v")]
)
def test_the_output_name_says_the_format(
    replayed, tmp_path: Path, capsys, suffix: str, start: str
) -> None:
    file = tmp_path / f"report.{suffix}"
    assert main(["--lang", "en", "verify", RIGHT, "--output", str(file)]) == 0
    assert file.read_text(encoding="utf-8").lower().startswith(start)
    assert capsys.readouterr().out == ""
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_what_the_target_prints_stays_out_of_the_report(tmp_path: Path, capsys) -> None:
    file = tmp_path / "loud.py"
    file.write_text("print('hello\\x1b[31m')\ndef f(q, k, v):\n    print('here')\n    return v\n")
    assert main(["verify", f"{file}:f", "--format", "json"]) == 1
    said = capsys.readouterr()
    json.loads(said.out)
    assert "hello" in said.err
    assert "\x1b" not in said.err
    assert said.err.splitlines()[-1] == "…"  # it prints a line for every call


def test_junit_is_written_beside_the_report(replayed, tmp_path: Path, capsys) -> None:
    file = tmp_path / "report.xml"
    assert main(["--lang", "en", "verify", WRONG, "--junit", str(file)]) == 1
    assert "no_scale" in capsys.readouterr().out
    suite = ElementTree.parse(file).getroot()[0]  # noqa: S314 (we wrote it)
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) > 0


def test_what_is_stopped_is_a_report_too(tmp_path: Path, capsys) -> None:
    target = f"{Path(__file__).parent.parent / 'verify' / 'hostile.py'}:leaves"
    words = ["--format", "json", "--junit", str(tmp_path / "report.xml")]
    assert main(["--lang", "en", "verify", target, *words]) == 2
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert faults(found) == []
    assert found["status"] == "unusable"
    assert "with status 7" in found["error"]["en"]
    assert said.err.startswith("error: target: ")
    assert said.err.count("\n") == 1
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()[0]  # noqa: S314
    assert "with status 7" in suite.find("testcase/error").get("message")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"{TARGETS / 'none.py'}:X"], "is no Python file"),
        ([f"{TARGETS / 'right.py'}:None"], "has no 'None'"),
        (["torch.pi"], "expected a class, a function or a module"),
        ([], "expected either TARGET or --self-test"),
        (["--self-test", "--junit", "x.xml"], "expected a TARGET, got --self-test"),
        ([RIGHT, "--time-limit", "0"], "--time-limit"),
        ([RIGHT, "--memory-limit", "1"], "--memory-limit"),
        ([RIGHT, "--self-test"], "expected either TARGET or --self-test"),
        ([RIGHT, "--embed-dim", "16"], "expected a multiple of heads"),
        ([RIGHT, "--heads", "0"], "--heads"),
        ([RIGHT, "--format", "latex"], "--format"),
        ([RIGHT, "--wall-limit", "0"], "--wall-limit"),
        ([RIGHT, "--jobs", "0"], "--jobs"),
        (["no_such_file*.py"], "there is no file"),
        ([f"{TARGETS}", "--forbid", "torch.nn.None"], "forbid: expected a class or function"),
        (["--self-test", "--format", "csv"], "format: csv needs a TARGET"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, words: list[str], said: str) -> None:
    assert main(["--lang", "en", "verify", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_unknown_weights_are_unproven_and_show_the_adapter(capsys) -> None:
    assert main(["--lang", "en", "verify", f"{TARGETS / 'right.py'}:Stranger"]) == 2
    said = capsys.readouterr().out
    assert "not proven: no check fails" in said
    assert "no parameter is recognised as k, q, v" in said
    assert "def attention(x, weights, heads, mask=None):" in said


POINTWISE = """
from torch import nn
class Pointwise(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
    def forward(self, x):
        return self.linear(x)
"""


def test_an_unknown_module_shows_the_adapter(capsys, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(POINTWISE)
    assert main(["--lang", "en", "verify", f"{tmp_path / 'mine.py'}:Pointwise"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[2] == "def attention(x, weights, heads, mask=None):"
    assert lines[-1].startswith("error: target: no parameter is recognised")
    assert len(lines) == 6


@pytest.mark.slow
def test_self_test(capsys) -> None:
    assert main(["--lang", "en", "verify", "--self-test"]) == 0
    said = capsys.readouterr().out
    assert "each rejected by the check written for it" in said
    assert "softmax_over_queries" in said


def test_a_survivor_is_status_1(capsys, monkeypatch) -> None:
    from headwise.lang import Text
    from headwise.verify.checks import mutation_testing as gate
    from headwise.verify.mistakes import Mistake

    harmless = Mistake("harmless", "mix", Text(""), "", "", "one_key_copies", {})
    check = gate.CHECKS[0]
    finding = gate.CheckResult(check, trials=1, times=0.5, failed="")
    tested = gate.SelfTest(((harmless, finding),), ((check, None),), ())
    monkeypatch.setattr(gate, "self_test", lambda **_given: tested)
    assert main(["--lang", "en", "verify", "--self-test", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["survivors"] == ["harmless"]
    assert found["idle"] == ["forward"]


def test_progress_is_shown_on_a_terminal(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["--lang", "en", "verify", RIGHT]) == 0
    assert "checking module_gradients" in capsys.readouterr().err


CLASS = """
import torch
from torch import nn
class Mine(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
    def forward(self, x):
        return self.attention(x, x, x)[0]
"""


@pytest.fixture
def class_folder(tmp_path: Path, monkeypatch) -> Path:
    """A folder with an attention, a function of no interest, and a file that does not load."""
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "a.py").write_text(CLASS)
    (folder / "b.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "c.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_folder_gives_one_table(class_folder: Path, capsys) -> None:
    words = ["--forbid", "torch.nn.MultiheadAttention", "--junit", "marks.xml"]
    assert main(["--lang", "en", "verify", "class", "--output", "marks.csv", *words]) == 1
    table = list(csv.DictReader(Path("marks.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["target"], row["status"], row["accepted"]) for row in table] == [
        ("class/a.py:Mine", "accepted", "no"),
        ("class/b.py", "unusable", "no"),
        ("class/c.py", "unusable", "no"),
    ]
    assert table[0]["forbidden"] == "torch.nn.MultiheadAttention"
    assert "double: " in table[1]["verdict"]
    assert "does not import: there is no module" in table[2]["verdict"]
    root = ElementTree.parse("marks.xml").getroot()  # noqa: S314 (we wrote it)
    assert [suite.get("file") for suite in root] == ["class/a.py", "class/b.py", "class/c.py"]
    assert sorted(path.name for path in class_folder.parent.iterdir()) == [
        "class",
        "marks.csv",
        "marks.xml",
    ]
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_file_with_one_attention_gives_its_report(class_folder: Path, capsys) -> None:
    assert main(["--lang", "en", "verify", "class/a.py"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("verify class/a.py:Mine\n")
    assert "accepted: equal to the oracle" in said


def test_a_file_without_an_attention_says_what_was_tried(class_folder: Path, capsys) -> None:
    assert main(["--lang", "en", "verify", "class/b.py", "--format", "github"]) == 2
    line = capsys.readouterr().out
    assert line.startswith("::warning file=class/b.py,title=headwise verify class/b.py::")
    assert "(double: " in line


@pytest.mark.parametrize("kind", ["json", "github", "csv", "html", "markdown", "text"])
def test_one_target_in_every_format(replayed, capsys, kind: str) -> None:
    assert main(["--lang", "en", "verify", WRONG, "--format", kind]) == 1
    assert "no_scale" in capsys.readouterr().out
