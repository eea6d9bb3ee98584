import json

import pytest

from headwise.cli import main

RIGHT = "One head, X = [[1.0, 0.0], [0.0, 1.0]].\n\nSoftmax: [[0.67, 0.33], [0.33, 0.67]]\n"
WRONG = RIGHT.replace("0.33, 0.67", "0.32, 0.67")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in an empty folder and in English."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWISE_LANG", "en")
    (tmp_path / "right.md").write_text(RIGHT, encoding="utf-8")
    (tmp_path / "wrong.md").write_text(WRONG, encoding="utf-8")
    return tmp_path


def run(capsys, *words):
    status = main(["check", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_nothing_wrong_is_status_0(capsys):
    status, out, err = run(capsys, "right.md")
    assert (status, err) == (0, "")
    assert "right.md: nothing wrong, 4 numbers checked" in out


def test_something_wrong_is_status_1_with_line_and_right_value(capsys):
    status, out, err = run(capsys, "wrong.md", "--format", "json")
    assert (status, err) == (1, "")
    found = json.loads(out)
    assert (found["format"], found["wrong"], found["checked"]) == ("headwise.check/1", 1, 4)
    assert found["findings"] == [
        {
            "line": 3,
            "printed": "0.32",
            "right": "0.33",
            "what": {
                "en": "head 1, softmax, row 1, column 0",
                "zh": "头 1，softmax，第 1 行，第 0 列",
            },
        }
    ]


@pytest.mark.parametrize("kind", ["text", "markdown", "html", "json"])
@pytest.mark.parametrize(("lang", "said"), [("en", "right value"), ("zh", "正确值")])
def test_every_format_in_both_languages(capsys, kind, lang, said):
    status, out, _ = run(capsys, "wrong.md", "--format", kind, "--lang", lang)
    assert status == 1
    assert "0.32" in out.replace("\\", "")
    assert kind == "json" or said in out


def test_output_is_a_file_and_its_name_says_the_format(capsys, folder):
    status, out, err = run(capsys, "wrong.md", "--output", "report.html")
    assert (status, out) == (1, "")
    assert "report.html" in err
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!")
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []


def test_what_the_article_lacks_comes_from_options(capsys, folder):
    (folder / "bare.md").write_text("Softmax: [[1.00, 0.00], [0.27, 0.73]]", encoding="utf-8")
    (folder / "x.csv").write_text("1.0,0.0\n0.0,1.0\n", encoding="utf-8")
    status, _, err = run(capsys, "bare.md")
    assert (status, "--x FILE" in err) == (2, True)
    words = ("--x", "x.csv", "--heads", "1", "--mask", "causal", "--scale", "1")
    assert run(capsys, "bare.md", *words)[0] == 0
    assert run(capsys, "bare.md", "--x", "x.csv", "--scale", "1")[0] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("missing.md",), "FILE: expected a readable text file"),
        ((".",), "FILE: expected a readable text file"),
        (("binary.md",), "UTF-8 or GB18030"),
        (("right.md", "--x", "x.pkl"), "unknown file type"),
        (("right.md", "--heads", "3"), "heads"),
        (("right.md", "--heads", "0"), "--heads"),
        (("right.md", "--mask", "sideways"), "mask: unknown"),
        (("right.md", "--weights", "w.pkl"), "weights"),
        (("right.md", "--output", "no/folder.md"), "output"),
        ((), "FILE"),
    ],
)
def test_unusable_is_status_2_and_one_line(capsys, folder, words, said):
    (folder / "binary.md").write_bytes(b"\x00\x01\x02\x03")
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_the_article_is_escaped_in_the_page(capsys, folder):
    said = "<script>alert(1)</script> = [0.123, 0.456, 0.789]"
    (folder / "<b>.md").write_text(RIGHT + said, encoding="utf-8")
    status, out, _ = run(capsys, "<b>.md", "--format", "html")
    assert status == 0
    assert "<script>alert" not in out
    assert "<b>.md" not in out
