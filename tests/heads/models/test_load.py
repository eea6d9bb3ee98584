"""A model from another source is loaded safely, or rejected with an error of one line."""

import json
import os
import pickle
import shutil
import socket
import urllib.request
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from headwise.errors import BadFile, MissingExtra
from headwise.heads.inspection import inspect
from headwise.heads.models import load as load_file
from headwise.heads.models import model_files
from headwise.heads.models.load import load
from headwise.heads.models.model_files import check_finite, safe_settings
from headwise.lang import Text
from tests.heads.tiny import Make, bert, saved, tokenizer


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


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
@pytest.mark.parametrize("evil", [False, True])
def test_a_pickle_is_never_opened(copy: Path, tmp_path: Path, name: str, evil: bool) -> None:
    mark = tmp_path / "executed"
    (copy / "model.safetensors").unlink()
    torch.save({"weight": Evil(mark) if evil else torch.ones(2)}, copy / name)
    with pytest.raises(
        BadFile, match=rf"are a pickle \({name}\), .* never loaded; .*save_pretrained"
    ):
        load(str(copy))
    assert not mark.exists()


def opened_by_pickle(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that torch.load is asked to open from now on."""
    asked: list[str] = []

    def refused(file: object, *given: object, **how: object) -> None:
        asked.append(str(file))
        raise OSError("a pickle was opened")

    monkeypatch.setattr(torch, "load", refused)
    return asked


def test_a_pickle_beside_weights_is_not_opened_by_any_way(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = opened_by_pickle(monkeypatch)
    torch.save({"weight": torch.ones(2)}, copy / "pytorch_model.bin")
    changed(copy, transformers_weights="pytorch_model.bin")
    load(str(copy))
    (copy / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(BadFile, match=r"model.safetensors is damaged"):
        load(str(copy))
    assert asked == []


@pytest.mark.parametrize(
    "file",
    [
        "../outside.safetensors",
        "/etc/x.safetensors",
        "..",
        "a\\b.safetensors",
        "weights.bin",
        "",
        3,
    ],
)
def test_an_index_names_safetensors_in_the_folder_and_nothing_else(
    copy: Path, file: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = opened_by_pickle(monkeypatch)
    (copy / "model.safetensors").rename(copy.parent / "outside.safetensors")
    torch.save({"weight": torch.ones(2)}, copy / "weights.bin")
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": file}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadFile, match=r"index.json: expected the names of .safetensors files in "):
        load(str(copy))
    assert asked == []


def test_an_index_of_files_beside_it_is_read(copy: Path) -> None:
    from safetensors.torch import load_file as tensors_of

    weights = tensors_of(copy / "model.safetensors")
    (copy / "model.safetensors").rename(copy / "part-1.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "part-1.safetensors")}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    found = load(str(copy)).model.state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("content", [b"junk", b"[]", b"{}", b'{"weight_map": 3}', b"[" * 100_000])
def test_a_damaged_index_is_one_clear_line(copy: Path, content: bytes) -> None:
    (copy / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(BadFile, match=r"model.safetensors.index.json is damaged \("):
        load(str(copy))


def test_an_index_of_any_size_is_not_read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "MOST_WEIGHT_INDEX_BYTES", 10)
    (copy / "model.safetensors.index.json").write_bytes(b" " * 11)
    with pytest.raises(BadFile, match=r"index.json is damaged \(ValueError: more than 10 bytes"):
        load(str(copy))


def test_an_adapter_is_refused_whatever_it_is_an_adapter_to(copy: Path) -> None:
    (copy / "adapter_config.json").write_text('{"base_model_name_or_path": "evil/model"}')
    with pytest.raises(BadFile, match=r"is an adapter to another model .*merge_and_unload"):
        load(str(copy))


CHOICES = {
    "kernel": "kernels-community/evil",
    "function": "somebody/evil@main:run",
    "paged": "paged|somebody/evil",
    "flex": "flex_attention",
    "flash": "flash_attention_2",
    "parts": {"": "somebody/evil", "text_config": "somebody/evil"},
}


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_a_model_does_not_choose_what_runs_its_attention(
    copy: Path, key: str, choice: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = kernels(monkeypatch)
    changed(copy, **{key: choice, f"{key}_internal": choice})
    assert load(str(copy)).config._attn_implementation == "sdpa"
    assert asked == []


def clip() -> torch.nn.Module:
    from transformers import CLIPConfig, CLIPModel

    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    text = sizes | {"vocab_size": 31, "intermediate_size": 13, "max_position_embeddings": 37}
    image = sizes | {"image_size": 8, "patch_size": 4, "intermediate_size": 13}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=image, projection_dim=5))


def pair() -> torch.nn.Module:
    from transformers import EncoderDecoderConfig, EncoderDecoderModel

    both = EncoderDecoderConfig.from_encoder_decoder_configs(bert().config, bert().config)
    return EncoderDecoderModel(config=both)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize(
    ("make", "part"),
    [(clip, "text_config"), (clip, "vision_config"), (pair, "encoder"), (pair, "decoder")],
)
def test_neither_does_a_part_of_one(
    tmp_path: Path, key: str, make: Make, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = kernels(monkeypatch)
    make().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changed(tmp_path, **{part: config[part] | {key: "somebody/evil"}})
    loaded = load(str(tmp_path), predicting=make is pair)
    assert getattr(loaded.config, part)._attn_implementation == "sdpa"
    assert asked == []


def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that transformers asks the hub for from now on."""
    from transformers.integrations import hub_kernels

    asked: list[str] = []

    def get(name: str, **how: object) -> None:
        asked.append(name)

    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", get)
    return asked


def test_what_transformers_would_ask_for_without_us_is_seen(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModel

    asked = kernels(monkeypatch)
    changed(copy, attn_implementation="somebody/evil")
    with suppress(Exception):
        AutoModel.from_pretrained(copy)
    assert asked == ["somebody/evil"]


def test_settings_that_choose_code_or_files_are_taken_out_however_deep() -> None:
    choices = {
        "attn_implementation": "a/b",
        "_attn_implementation_internal": "a/b",
        "experts_implementation": "a/b",
        "auto_map": {"AutoModel": "evil.Evil"},
        "transformers_weights": "x.bin",
        "configuration_files": ["config.9.json"],
    }
    sizes = {"hidden_size": 3, "layers": [{"heads": 2}], "name": None}
    found = {"model_type": "bert", "text_config": sizes | choices, "each": [sizes | choices]}
    wanted = {"model_type": "bert", "text_config": sizes, "each": [sizes]}
    assert safe_settings(found | choices, "it") == wanted


@pytest.mark.parametrize("nested", [False, True])
def test_quantised_weights_are_refused(copy: Path, nested: bool) -> None:
    values = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    changed(copy, **({"text_config": values} if nested else values))
    with pytest.raises(BadFile, match=r"weights are quantised .*; use the original model"):
        load(str(copy))


@pytest.mark.parametrize("kind", [None, "", 3, ["bert"]])
def test_a_config_says_what_kind_of_model_it_is_of(copy: Path, kind: object) -> None:
    changed(copy, model_type=kind)
    with pytest.raises(BadFile, match=r"config.json: expected the architecture as model_type"):
        load(str(copy))


def test_the_hub_is_not_asked_for_what_a_directory_names(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants
    from transformers import AutoConfig

    asked: list[object] = []

    def unknown(host: object, *where: object, **how: object) -> None:
        asked.append(host)
        raise OSError("no such host")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    changed(copy, model_type="detr", backbone="somebody/evil", use_timm_backbone=False)
    with pytest.raises(BadFile, match="cannot load"):
        load(str(copy))
    assert asked == []
    assert constants.HF_HUB_OFFLINE is False
    with suppress(Exception):
        AutoConfig.from_pretrained(copy)
    assert asked


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_named(copy: Path, value: float) -> None:
    from safetensors.torch import load_file as tensors_of
    from safetensors.torch import save_file

    weights = tensors_of(copy / "model.safetensors")
    wrong = next(name for name in weights if "query.weight" in name)
    weights[wrong][1, 2] = value
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadFile, match=rf"{wrong} has 1 weights that are NaN or infinite"):
        load(str(copy))


def test_weights_whose_sum_is_too_large_are_still_numbers() -> None:
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(torch.finfo(torch.float32).max)
    check_finite("it", model)


@pytest.mark.parametrize("value", ["x", [1], {"a": 1}])
def test_a_longest_text_that_is_no_number_is_named(copy: Path, value: object) -> None:
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings["model_max_length"] = value
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(BadFile, match="model_max_length: expected a number of tokens, got"):
        load(str(copy))


def test_a_tokenizer_that_reads_no_word_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedTokenizerFast

    def fails(*given: object, **how: object) -> None:
        raise TypeError("settings of a wrong type\nare found late")

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", fails)
    with pytest.raises(BadFile, match=r"tokenizer.json is damaged .* of a wrong type are found la"):
        load(str(copy))


def test_settings_of_a_tokenizer_without_its_words_are_no_tokenizer(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    with pytest.raises(BadFile, match=r"has no tokenizer \(tokenizer.json\); save a model there"):
        load(str(copy))


def test_a_model_that_fails_in_any_way_on_a_text_is_one_clear_line(copy: Path) -> None:
    changed(copy, chunk_size_feed_forward=7)
    with pytest.raises(BadFile, match=r"does not run on this text \(ValueError: The dimension"):
        inspect(load(str(copy)), "a b c")


@pytest.fixture
def cached(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody/tiny, as the hub's cache keeps it."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(load_file, "_hub_has_an_address", lambda: False)
    folder = tmp_path / "hub" / "models--somebody--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("1" * 40)
    return Path(shutil.copytree(copy, folder / "snapshots" / ("1" * 40)))


def test_what_the_hub_once_gave_is_loaded(cached: Path, copy: Path) -> None:
    from safetensors.torch import load_file as tensors_of

    loaded = load("somebody/tiny")
    assert loaded.source == "hub"
    found, weights = loaded.model.state_dict(), tensors_of(copy / "model.safetensors")
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())


def test_a_pickle_from_the_hub_is_not_opened(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = opened_by_pickle(monkeypatch)
    (cached / "model.safetensors").unlink()
    torch.save({"weight": torch.ones(2)}, cached / "pytorch_model.bin")
    with pytest.raises(BadFile, match=r"'somebody/tiny' has no model.safetensors on the hub"):
        load("somebody/tiny")
    assert asked == []


def test_an_adapter_from_the_hub_is_refused(cached: Path) -> None:
    (cached / "adapter_config.json").write_text('{"base_model_name_or_path": "evil/model"}')
    with pytest.raises(BadFile, match="is an adapter to another model"):
        load("somebody/tiny")


def test_an_index_from_the_hub_is_held_to_its_folder(cached: Path) -> None:
    (cached / "model.safetensors").unlink()
    index = {"weight_map": {"embeddings.word_embeddings.weight": "../outside.safetensors"}}
    (cached / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadFile, match=r"got '../outside.safetensors'"):
        load("somebody/tiny")


def test_weights_that_are_missing_are_not_made_up(copy: Path) -> None:
    from safetensors.torch import load_file as tensors_of
    from safetensors.torch import save_file

    weights = tensors_of(copy / "model.safetensors")
    gone = next(name for name in weights if "query.weight" in name)
    del weights[gone]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadFile, match=r"lacks 1 weights \(.*query.weight\); save the whole model"):
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
        ({"num_hidden_layers": -1}, "num_hidden_layers: expected an integer from 0 to 1024"),
        ({"hidden_size": 2**40}, "hidden_size: expected an integer from 0 to 16777216"),
        ({"hidden_size": "21"}, "hidden_size: expected an integer .*, got '21'"),
        ({"text_config": {"n_layer": 10**9}}, "n_layer: expected an integer from 0 to 1024"),
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
    with pytest.raises(BadFile, match=r"vocab.txt is a device, pipe or socket; remove it"):
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
        with pytest.raises(BadFile, match="are a pickle"):
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
