"""The command ``headwise inspect`` with ``--corpus`` and ``--open``."""

import csv
import io
import json
from pathlib import Path

import pytest

from headwise.cli import BAD_INPUT, main
from headwise.cli.inspect import documents_of
from headwise.cli.output import shown
from headwise.heads.corpus.pipeline import Share
from headwise.heads.inspection_export import HEAD, faults
from headwise.heads.metrics import MEASURED
from tests.heads.tiny import saved

NUMBERS = [*(m.name for m in MEASURED), *(f"uniform_{m.name}" for m in MEASURED)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    (tmp_path / "a.txt").write_text("the cat sat\non a mat\n\nthe mat", encoding="utf-8")
    return str(tmp_path / "a.txt")


def run(*words: str, lang: str = "en") -> int:
    return main(["--lang", lang, "inspect", *words])


@pytest.mark.parametrize(
    ("lang", "said"), [("en", "on 3 documents"), ("zh", "的注意力头（3 个文档）")]
)
def test_it_prints_a_report(
    model: str, corpus: str, capsys: pytest.CaptureFixture[str], lang: str, said: str
) -> None:
    assert run(model, "--corpus", corpus, lang=lang) == 0
    out, err = capsys.readouterr()
    assert said in out
    assert "L1H2" in out
    assert all(line.endswith("…") for line in err.splitlines())
    assert "3" in err.splitlines()[-1]


def test_a_saved_run_says_the_same_again_without_the_model(
    model: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    assert run(model, "--corpus", corpus, "--save", folder, "--format", "json") == 0
    first = capsys.readouterr().out
    Path(corpus).unlink()
    assert run("--open", folder, "--format", "json") == 0
    out, err = capsys.readouterr()
    assert out == first
    assert not err
    assert faults(json.loads(out)) == []


def test_a_table_of_every_number(
    model: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = str(tmp_path / "run"), tmp_path / "heads.csv"
    assert run(model, "--corpus", corpus, "--save", folder, "--output", str(file)) == 0
    capsys.readouterr()
    assert run("--open", folder, "--format", "csv") == 0
    out = capsys.readouterr().out
    assert out == file.read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == [*HEAD, "names", *NUMBERS]
    assert [row["head"] for row in rows] == [f"L{i}H{j}" for i in range(2) for j in range(3)]
    run("--open", folder, "--format", "json")
    values = json.loads(capsys.readouterr().out)["heads"][4]["values"]
    for name, value in values.items():
        assert rows[4][name] == ("" if value is None else repr(value))


def test_and_as_parquet(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "heads.parquet"
    assert run(model, "the cat sat", "--output", str(file)) == 0
    table = parquet.read_table(file)
    assert table.column_names == [*HEAD, *NUMBERS]
    assert table.num_rows == 6
    assert str(table.schema.field("layer").type) == "int64"
    assert str(table.schema.field("entropy").type) == "double"
    capsys.readouterr()
    assert run(model, "the cat sat", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    for name in ("entropy", "uniform_entropy", "next"):
        assert [repr(value) for value in table[name].to_pylist()] == [row[name] for row in rows]


def test_a_missing_pyarrow_says_how_to_install_it(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(model, "the cat", "--output", str(tmp_path / "a.parquet")) == BAD_INPUT
    assert "pip install 'headwise[parquet]'" in capsys.readouterr().err


def test_heads_are_named_unless_nobody_wants_that(
    model: str, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, "--corpus", corpus, "--format", "json") == 0
    names = json.loads(capsys.readouterr().out)["names"]
    assert {each["head"] for each in names} == {f"L{i}H{j}" for i in range(2) for j in range(3)}
    assert run(model, "--corpus", corpus, "--no-names", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["names"] == []
    assert run(model, "--corpus", corpus, "--no-names") == 0
    assert "Names of heads" not in capsys.readouterr().out


def test_paragraphs(model: str, corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--corpus", corpus, "--paragraphs", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["corpus"]["documents"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["M", "--corpus", "C", "the cat"], "--open DIR, got SENTENCE and --corpus; write the"),
        (["--corpus", "C"], "model: expected either a model or a saved run with --open"),
        (["M", "--open", "run"], "model: expected either a model or a saved run with --open"),
        (["M", "the cat", "--save", "run"], "save: --save requires --corpus, got SENTENCE; omit"),
        (["M", "the cat", "--every", "1"], "every: --every requires --corpus, got SENTENCE"),
        (["M", "the cat", "--no-names"], "no-names: --no-names requires --corpus or --probe, got"),
        (["M", "the cat", "--paragraphs"], "paragraphs: --paragraphs requires --corpus"),
        (["M", "--corpus", "C", "--heads", "all"], "heads: --heads requires SENTENCE or --text"),
        (["--open", "run", "--truncate"], "truncate: --truncate requires SENTENCE or --text or"),
        (["--open", "/no/such/run"], "open: expected a folder from --save, got /no/such"),
        (["M", "--corpus", "/no/a.txt"], "corpus: cannot read /no/a.txt: No such file"),
        (["M", "--corpus", "/"], "corpus: expected the file extension .txt, .jsonl, .conllu"),
        (["M", "--corpus", "C", "--output", "C"], "output: expected a file that is not an input"),
        (["M", "--probe", "repeated"], "probe needs 18 different tokens, but"),
        (
            ["M", "--corpus", "C", "--every", "nan"],
            "every: expected a number of seconds >= 0, got nan",
        ),
        (
            ["M", "--corpus", "C", "--every", "inf"],
            "every: expected a number of seconds >= 0, got inf",
        ),
        (["M", "--corpus", "C", "--save", "C"], "save: cannot write into the folder"),
        (["M", "--corpus", "C", "--figures", "C"], "figures: cannot write into the folder"),
        (["M", "--probe", "once"], "'once' is not"),
        (["M", "the cat", "--seed", "1"], "seed: --seed requires --probe, got SENTENCE; omit"),
        (["M", "the cat", "--format", "parquet"], "format: parquet cannot be printed; name a"),
        (["M", "the cat", "--output", "M/config.json"], "output: expected a file that is not an"),
        (["M", "the cat", "--output", "M/model.safetensors"], "output: expected a file that"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    model: str, corpus: str, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    places = {"M": model, "C": corpus}
    given = [
        places.get(word, word.replace("M/", f"{model}/", 1) if word[:2] == "M/" else word)
        for word in words
    ]
    before = {file: file.read_bytes() for file in Path(model).iterdir()}
    assert run(*given) == BAD_INPUT
    out, err = capsys.readouterr()
    assert not out
    assert said in err
    errors = [line for line in err.splitlines() if not line.endswith("…")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert {file: file.read_bytes() for file in Path(model).iterdir()} == before


@pytest.mark.parametrize("words", [["the cat", "--text", "a"], [], ["the cat", "--open", "run"]])
def test_a_chinese_message_has_no_english_words_between_its_names(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run("M", *words, lang="zh") == BAD_INPUT
    got = capsys.readouterr().err.partition("收到")[2].partition("；")[0]
    assert got
    assert "and" not in got
    assert "nothing" not in got


@pytest.mark.parametrize("option", ["save", "figures"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_place_that_takes_no_file_is_told_of_under_its_option(
    model: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, option: str, when: str,
) -> None:  # fmt: skip
    """A folder that is only read is found at once; a disk that is full, as it is written to."""
    import tempfile

    if option == "figures":
        pytest.importorskip("matplotlib")

    def refused(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile" if when == "before" else "mkstemp", refused)
    assert run(model, "--corpus", corpus, f"--{option}", str(tmp_path)) == BAD_INPUT
    err = capsys.readouterr().err
    (said,) = [line for line in err.splitlines() if not line.endswith("…")]
    assert said.startswith(f"error: {option}: cannot write")
    assert "No space left on device" in said
    assert ("checking the corpus" in err) == (when == "after")


def test_a_gold_pair_beyond_the_tokens_is_told_of_by_its_key(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "the cat"}\n{"text": "the cat", "alignment": [[0, 99]]}')
    for lang in ("en", "zh"):
        assert run(model, "--corpus", str(file), "--no-names", lang=lang) == BAD_INPUT
        err = capsys.readouterr().err
        assert "a.jsonl:2" in err
        assert "alignment" in err
        assert "pairs:" not in err
        assert "pairs：" not in err


@pytest.mark.parametrize("share", [Share(), Share(0, 2), Share(0, 9)])
def test_the_progress_of_one_of_several_processes_says_so(
    capsys: pytest.CaptureFixture[str], share: Share
) -> None:
    count = len(share.numbers(5))
    for lang in ("en", "zh"):
        with shown(lang, documents_of(share)) as show:
            show(count, count)
    en, zh = capsys.readouterr().err.splitlines()
    alone = share.processes == 1
    assert en.startswith(f"{count} of {count} documents" + (", " if alone else " of the first of "))
    assert ("个进程" in zh) == (not alone)
    assert alone or (str(share.processes) in en and str(share.processes) in zh)


def test_a_bar_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with shown("zh") as show:
        show(3, 7)
        show(7, 7)
    assert "文档" in screen.getvalue()
    assert "7/7" in screen.getvalue()
    with shown("en", quiet=True) as show:
        show(1, 2)


def test_a_packaged_model_has_files_that_are_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    (tmp_path / "minilm").mkdir()
    file = tmp_path / "minilm" / "config.json"
    file.write_text("{}")
    assert run("minilm", "the cat", "--output", str(file)) == BAD_INPUT
    assert "output: expected a file that is not an input" in capsys.readouterr().err


def test_figures_go_into_a_folder_of_their_own(
    model: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "figures"
    assert run(model, "--corpus", corpus, "--format", "csv", "--figures", str(folder)) == 0
    assert f"6 figures written to: {folder}" in capsys.readouterr().err
    names = {file.name for file in folder.iterdir()}
    kinds = ("distance", "overview", "similarity")
    assert names == {f"{kind}.{ending}" for kind in kinds for ending in ("png", "svg")}


def test_a_missing_matplotlib_is_said_before_the_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("./no-such-model", "the cat", "--figures", "x") == BAD_INPUT
    assert "pip install 'headwise[plots]'" in capsys.readouterr().err
