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
            "verdict": "wrong",
            "cause": {"en": "a single number is wrong", "zh": "仅一个数有误"},
            "root": 3,
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
    ("words", "status"),
    [
        (("--x", "x.csv"), 0),
        (("--heads", "1"), 0),
        (("--heads", "2"), 2),
        (("--mask", "full"), 0),
        (("--mask", "causal"), 1),
        (("--mask", "window:1,1"), 0),
        (("--mask", "window:0,0"), 1),
        (("--mask", "mask.csv"), 0),
        (("--scale", "0.70710678"), 0),
        (("--scale", "1"), 1),
        (("--weights", "weights.safetensors"), 0),
    ],
)
def test_every_option(capsys, folder, words, status):
    import torch
    from safetensors.torch import save_file

    (folder / "x.csv").write_text("1.0,0.0\n0.0,1.0\n", encoding="utf-8")
    (folder / "mask.csv").write_text("1,1\n1,1\n", encoding="utf-8")
    eye = torch.eye(2)
    save_file(
        {"in_proj_weight": torch.cat([eye] * 3), "out_proj.weight": eye},
        folder / "weights.safetensors",
    )
    found, _, err = run(capsys, "right.md", *words)
    assert (found, "Traceback" in err) == (status, False)


@pytest.mark.parametrize("words", [(), ("--format", "json")])
def test_where_nothing_is_checked_there_is_no_tick(capsys, folder, words):
    (folder / "empty.md").write_text("X = [[1.0, 2.0], [0.5, 1.5]]\n", encoding="utf-8")
    status, out, err = run(capsys, "empty.md", *words)
    assert (status, out) == (2, "")
    assert "empty.md: nothing could be checked" in err
    assert err.count("\n") == 1


def test_an_input_that_does_not_fit_checks_nothing(capsys, folder):
    (folder / "x.csv").write_text("1.0,0.0,2.0\n0.0,1.0,3.0\n4.0,1.0,3.0\n", encoding="utf-8")
    (folder / "bare.md").write_text("Softmax: [[0.67, 0.33], [0.33, 0.67]]", encoding="utf-8")
    status, _, err = run(capsys, "bare.md", "--x", "x.csv")
    assert status == 2
    assert "nothing could be checked" in err
    assert "4 could not be matched" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("missing.md",), "missing.md: expected a readable text file"),
        ((".",), "expected a readable text file, got an error ("),
        (("binary.md",), "expected text in UTF-8"),
        (("right.md", "--x", "x.pkl"), "unknown file extension"),
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


def test_the_standard_input_is_read(capsys, monkeypatch):
    import io

    for word, text, status in (("-", RIGHT, 0), ("/dev/stdin", WRONG, 1)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        found, out, _ = run(capsys, word)
        assert (found, "stdin: " in out) == (status, True)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b" " * 1_000_001)))
    status, _, err = run(capsys, "-")
    assert (status, "stdin: expected at most 1,000,000 characters" in err) == (2, True)


def test_what_is_no_regular_file_is_refused(capsys, folder):
    import os

    os.mkfifo(folder / "pipe")
    status, _, err = run(capsys, "pipe")
    assert status == 2
    assert "pipe: expected a readable text file, got an error (not a regular file)" in err


@pytest.mark.parametrize("number", ["1e99999", "1e999", "-3e400", "2 × 10^{999}", "1e300"])
def test_huge_numbers_are_refused_by_name(capsys, folder, number):
    (folder / "huge.md").write_text(f"One head\nX = [[{number}, 2], [3, 4]]", encoding="utf-8")
    status, out, err = run(capsys, "huge.md")
    assert (status, out) == (2, "")
    assert "huge.md: line 2: expected numbers below 1e280" in err


def test_messages_name_the_file(capsys, folder):
    (folder / "none.md").write_text("nothing", encoding="utf-8")
    for lang in ("en", "zh"):
        _, _, err = run(capsys, "none.md", "--lang", lang)
        assert "none.md" in err
        assert "FILE:" not in err


def test_the_article_is_escaped_in_the_page(capsys, folder):
    said = "<script>alert(1)</script> = [0.123, 0.456, 0.789]"
    (folder / "<b>.md").write_text(RIGHT + said, encoding="utf-8")
    status, out, _ = run(capsys, "<b>.md", "--format", "html")
    assert status == 0
    assert "<script>alert" not in out
    assert "<b>.md" not in out


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("option", ["--position=rotary", "--position=alibi", "--kv=kv.csv"])
@pytest.mark.parametrize("name", ["a.md", "a.tex", "a.html"])
def test_what_is_not_computed_is_not_accused(capsys, folder, name, option, lang):
    (folder / "kv.csv").write_text("1,0,2,1\n0,1,1,0\n", encoding="utf-8")
    assert main(["explain", option, "--lang", lang, "--output", name]) == 0
    capsys.readouterr()
    status, out, err = run(capsys, name)
    assert (status, out) == (2, "")
    assert f"{name}: it explains an attention with a position or with other keys" in err
