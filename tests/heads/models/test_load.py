"""Somebody else's model: loaded safely, or refused in one line."""

import json
import os
import pickle
import shutil
import socket
import urllib.request
import warnings
from pathlib import Path

import pytest
import torch

from headwise.errors import BadFile, MissingExtra
from headwise.heads.models import load as load_file
from headwise.heads.models.load import load
from headwise.lang import Text
from tests.heads.tiny import saved


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "copy"))


def test_a_directory_is_loaded_in_float32_and_eval_mode(model: Path) -> None:
    said: list[Text] = []
    loaded = load(str(model), said.append)
    assert loaded.source == "directory"
    assert not loaded.model.training
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.float32}
    assert loaded.longest == 37
    assert [text.en for text in said] == [f"loading {model}"]


def test_transformers_speaks_again_afterwards(model: Path) -> None:
    from transformers import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load(str(model))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (before, bars)


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (("config.json",), "has no config.json"),
        (("model.safetensors",), r"has no weights \(model.safetensors\)"),
        (("tokenizer.json", "tokenizer_config.json"), r"has no tokenizer \(tokenizer.json\)"),
    ],
)
def test_what_a_directory_lacks_is_named(copy: Path, gone: tuple[str, ...], said: str) -> None:
    for name in gone:
        (copy / name).unlink()
    with pytest.raises(BadFile, match=f"model: the directory .* {said}; save a model there"):
        load(str(copy))


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return Path.touch, (self.mark,)


def test_a_pickle_with_more_than_tensors_is_never_opened(copy: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    (copy / "model.safetensors").unlink()
    torch.save({"weight": Evil(mark)}, copy / "pytorch_model.bin")
    with pytest.raises(BadFile, match="a pickle that holds more than tensors, and it was not open"):
        load(str(copy))
    assert not mark.exists()


def test_a_pickle_of_tensors_alone_is_read(copy: Path) -> None:
    from safetensors.torch import load_file as tensors_of

    weights = tensors_of(copy / "model.safetensors")
    torch.save(weights, copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    found = load(str(copy)).model.state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())


def test_weights_that_are_missing_are_not_made_up(copy: Path) -> None:
    from safetensors.torch import load_file as tensors_of
    from safetensors.torch import save_file

    weights = tensors_of(copy / "model.safetensors")
    gone = next(name for name in weights if "query.weight" in name)
    del weights[gone]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadFile, match=r"lacks 1 weights \(.*query.weight\), which would be random"):
        load(str(copy))


def test_code_that_comes_with_a_model_is_not_run(copy: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    config = json.loads((copy / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.E"}}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "evil.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()")
    with pytest.raises(BadFile, match=r"cannot load .* without remote code"):
        load(str(copy))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{not json"),
        ("config.json", b'{"model_type": "no-such-model"}'),
        ("model.safetensors", b"\x00\xff junk \x1b[31m"),
        ("tokenizer.json", b"[]"),
    ],
)
def test_broken_files_are_one_clear_line(copy: Path, name: str, content: bytes) -> None:
    (copy / name).write_bytes(content)
    with pytest.raises(BadFile, match="model: cannot load") as caught:
        load(str(copy))
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def changed(copy: Path, **values: object) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: expected .* 0 to 1024, got 1000000000"),
        ({"num_hidden_layers": -1}, "num_hidden_layers: expected a whole number from 0 to 1024"),
        ({"hidden_size": 2**40}, "hidden_size: expected a whole number from 0 to 16777216"),
        ({"hidden_size": "21"}, "hidden_size: expected a whole number .*, got '21'"),
        ({"text_config": {"n_layer": 10**9}}, "n_layer: expected a whole number from 0 to 1024"),
    ],
)
def test_sizes_are_bounded_before_anything_is_built(
    copy: Path, values: dict[str, object], said: str
) -> None:
    changed(copy, **values)
    with pytest.raises(BadFile, match=rf"model: config.json of .*: {said}"):
        load(str(copy))


def test_a_config_of_any_size_is_not_read(copy: Path) -> None:
    (copy / "config.json").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(BadFile, match=r"config.json of .*: expected at most 1,048,576 bytes, got"):
        load(str(copy))


def test_a_pipe_among_the_files_is_not_waited_for(copy: Path) -> None:
    os.mkfifo(copy / "vocab.txt")
    with pytest.raises(BadFile, match=r"vocab.txt is a device, pipe or socket, and a model is"):
        load(str(copy))


def test_weights_of_another_size_are_named(copy: Path) -> None:
    changed(copy, vocab_size=7)
    with pytest.raises(
        BadFile, match=r"model.safetensors does not fit .*shape \(31, 21\).*\(7, 21\)"
    ) as caught:
        load(str(copy))
    assert "形状为 (31, 21)，config.json 要求 (7, 21)" in caught.value.text.zh


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_the_damaged_file_is_named(copy: Path, name: str) -> None:
    (copy / name).write_bytes((copy / name).read_bytes()[:300])
    with pytest.raises(BadFile, match=f"model: cannot load .*{name} is damaged or does not fit"):
        load(str(copy))


def test_a_bare_pickle_is_refused_without_a_warning(copy: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Evil(mark)}))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with pytest.raises(BadFile, match="a pickle that holds more than tensors, and it was not"):
            load(str(copy))
    assert [str(warning.message) for warning in heard] == []
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["./nowhere", "a/b/c", "what is this?", "", "..", "x" * 300, "a\0b"]
)
def test_what_is_neither_name_nor_directory_is_refused(name: str) -> None:
    if name == "..":
        with pytest.raises(BadFile, match=r"the directory \.\. has no"):
            load(name)
        return
    with pytest.raises(BadFile, match=r"is not a directory; .* or one of: minilm, rxnmapper"):
        load(name)


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"junk")
    with pytest.raises(BadFile, match="is not a directory"):
        load(str(file))


def test_without_a_network_a_hub_id_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_file, "_hub_has_an_address", lambda: False)
    with pytest.raises(BadFile, match=r"cannot get 'nobody/nothing' from the hub .* the network"):
        load("nobody/nothing")


def test_the_hub_is_asked_only_where_it_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*where: object) -> None:
        raise OSError("no such host")

    def found(*where: object) -> list[object]:
        return []

    monkeypatch.setattr(load_file, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert not load_file._hub_has_an_address()
    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert load_file._hub_has_an_address()
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(load_file, "getproxies", lambda: {"https": "http://proxy"})
    assert load_file._hub_has_an_address()
    assert urllib.request.getproxies is not load_file.getproxies


def test_without_transformers_the_extra_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"'transformers'; install it with: .*headwise\[inspect"):
        load(str(model))
