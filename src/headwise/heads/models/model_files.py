"""The files of a model: which are read, what is checked first, and how conversions write them."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.document.text_format import clean
from headwise.errors import BadFile, MissingExtra
from headwise.lang import Text, same

INDEX = "model.safetensors.index.json"
WEIGHTS = ("model.safetensors", INDEX)
ADAPTER = "adapter_config.json"  # it names another model, which transformers would download
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MOST_WEIGHT_INDEX_BYTES = 2**26  # the largest index that is read; it has a line for each tensor


def check_index(path: Path, name: str) -> tuple[str, ...]:
    """The files of an index; raises `BadFile` unless they are safetensors beside it."""
    try:
        if path.stat().st_size > MOST_WEIGHT_INDEX_BYTES:
            raise ValueError(f"more than {MOST_WEIGHT_INDEX_BYTES:,} bytes")
        files = set(json.loads(path.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = clean(f"{type(error).__name__}: {error}")[:100]
        raise BadFile(
            "model: cannot load {name}: model.safetensors.index.json is damaged ({reason}); save "
            "the model again with model.save_pretrained",
            name=clean(name),
            reason=reason,
        ) from error
    for file in sorted(files, key=str):
        beside = isinstance(file, str) and not any(sign in file for sign in "/\\\0:")
        if not beside or not file.endswith(".safetensors"):
            raise BadFile(
                "model: cannot load {name}: model.safetensors.index.json: expected the names of "
                ".safetensors files beside it, got {shown}; save the model again with "
                "model.save_pretrained",
                name=clean(name),
                shown=clean(repr(file))[:60],
            )
    return tuple(sorted(files))


def fetch_weights(where: str, name: str, *, local: bool) -> None:
    """Download a model's weights into the hub's cache; ``local`` uses only what is there.

    Raises `BadFile` if it has no safetensors, is an adapter, or its index names other files.
    """
    from transformers.utils.hub import cached_file

    def got(file: str) -> str | None:
        path: str | None = cached_file(
            where, file, local_files_only=local, _raise_exceptions_for_missing_entries=False
        )
        return path

    if got(ADAPTER):
        raise _adapter(name)
    if got(WEIGHTS[0]):
        return
    index = got(INDEX)
    if index is None:
        raise BadFile(
            "model: '{name}' has no model.safetensors that can be got from the hub, and weights "
            "that come as a pickle are never opened; give a directory saved with "
            "model.save_pretrained, or another model",
            name=clean(name),
        )
    for file in check_index(Path(index), name):
        got(file)


def _adapter(name: str) -> BadFile:
    return BadFile(
        "model: {name} is an adapter to another model (adapter_config.json); put them together "
        "with model.merge_and_unload(), then model.save_pretrained",
        name=clean(name),
    )


def check_complete(name: str, file: str, report: dict[str, Any]) -> None:
    """Raise `BadFile` if transformers' report has weights that would be random, save a pooler's."""
    for key, got, wanted in sorted(report.get("mismatched_keys", ())):
        raise BadFile(
            "model: cannot load {name}: {file} does not fit its config.json: {key} has shape "
            "{got}, config.json asks for {wanted}; save both with model.save_pretrained",
            name=clean(name),
            file=file,
            key=clean(str(key)),
            got=tuple(got),
            wanted=tuple(wanted),
        )
    missing = sorted(key for key in report.get("missing_keys", ()) if "pooler" not in key)
    if missing:
        shown = ", ".join(clean(key) for key in missing[:3])
        raise BadFile(
            "model: {name} lacks {num_missing} weights ({shown}), which would be random; save the "
            "whole model with model.save_pretrained",
            name=clean(name),
            num_missing=len(missing),
            shown=shown,
        )


def check_finite(name: str, model: nn.Module) -> None:
    """Raise `BadFile` for weights that are NaN or infinite."""
    for key, weight in model.named_parameters():
        if not weight.is_floating_point() or torch.isfinite(weight.detach().sum()):
            continue
        wrong = int((~torch.isfinite(weight.detach())).sum())  # a sum can be too large by itself
        if wrong:
            raise BadFile(
                "model: {name}: {key} holds {wrong} weights that are NaN or infinite, so what it "
                "computes means nothing; give weights from before the training or the conversion "
                "failed",
                name=clean(name),
                key=clean(key),
                wrong=wrong,
            )


CONFIG = "config.json"
_SENTENCE_PIECE = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", *_SENTENCE_PIECE)
"""Most tokenizers need one of these files; those of bytes have none."""

TOKENIZERS = (VOCABULARIES[0], "tokenizer_config.json", *VOCABULARIES[1:])
MOST_BYTES = 2**20  # the largest config.json that is read
MOST_LAYERS = 1024
MOST_SIZE = 2**24
_LAYERS = re.compile(r"(?:\w*_)?layers?")
_SIZES = re.compile(
    r"(?:\w*_)?(?:size|dim|embd|d_model|inner|d_ff|d_kv|heads?|positions|embeddings|ctx|groups)"
)


def check_directory(folder: Path, name: str) -> None:
    """Check the files of a directory before transformers reads them.

    Raises `BadFile` if config, weights or tokenizer is missing, an entry is a device or a pipe,
    config.json is too large, it is an adapter, or the weights are not safetensors here.
    """
    for entry in folder.iterdir():
        if entry.exists() and not entry.is_file() and not entry.is_dir():
            raise BadFile(
                "model: {entry} is a device, pipe or socket, and a model is files; take it away",
                entry=clean(str(entry)),
            )
    if (folder / ADAPTER).is_file():
        raise _adapter(name)
    if (folder / INDEX).is_file():
        check_index(folder / INDEX, name)
    pickles = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PICKLES)
    if pickles and not any((folder / file).is_file() for file in WEIGHTS):
        raise BadFile(
            "model: the weights of {name} are a pickle ({file}), which can hold programs and is "
            "never opened; save them as model.safetensors: load the model where you trust it, then "
            "model.save_pretrained",
            name=clean(name),
            file=clean(pickles[0]),
        )
    for kind, files in (("config", (CONFIG,)), ("weights", WEIGHTS), ("tokenizer", TOKENIZERS)):
        if not any((folder / file).is_file() for file in files):
            raise missing_file(name, kind)
    size = (folder / CONFIG).stat().st_size
    if size > MOST_BYTES:
        raise BadFile(
            "model: config.json of {name}: expected at most {most_bytes:,} bytes, got {size:,}; "
            "give the one that save_pretrained wrote",
            name=clean(name),
            most_bytes=MOST_BYTES,
            size=size,
        )


def missing_file(name: str, kind: str) -> BadFile:
    """The error for a directory without its "config", "weights" or "tokenizer"."""
    parts = {
        "config": same(CONFIG),
        "weights": Text("weights (model.safetensors)"),
        "tokenizer": Text("tokenizer (tokenizer.json)"),
    }
    return BadFile(
        "model: the directory {name} has no {part}; save a model there with model.save_pretrained "
        "and tokenizer.save_pretrained",
        name=clean(name),
        part=parts[kind],
    )


def check_sizes(config: dict[str, Any], name: str) -> None:
    """Raise `BadFile` if a size or number of layers is no whole number, below 0 or too large."""
    for key, value in _entries(config):
        most = MOST_LAYERS if _LAYERS.fullmatch(key) else MOST_SIZE
        if isinstance(value, list | dict | float | None):
            continue
        if not isinstance(value, int) or not 0 <= value <= most:
            raise BadFile(
                "model: config.json of {name}: {key}: expected a whole number from 0 to {most}, "
                "got {shown}; give the one that save_pretrained wrote",
                name=clean(name),
                key=clean(key),
                most=most,
                shown=clean(repr(value))[:40],
            )


def part(where: str, names: tuple[str, ...]) -> str:
    """The first of these files that a directory has; if it has none, the first name."""
    return next((name for name in names if (Path(where) / name).is_file()), names[0])


def _entries(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every number of layers and every size, also in parts such as ``text_config``."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _entries(value)
        elif _LAYERS.fullmatch(key) or _SIZES.fullmatch(key):
            yield key, value


_CHOOSES = re.compile(
    r"_?(attn|experts)_implementation(_internal)?"
    r"|auto_map|custom_pipelines|configuration_files|transformers_weights"
)
"""Keys by which transformers runs code from the hub or a package, or reads another file: an
attention named "owner/repository" is a kernel that it downloads and runs."""


def safe_settings(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The configuration, and its parts, without the keys that choose code or files.

    Raises `BadFile` if ``model_type`` is missing, or the weights are quantised: other packages
    unpack them, some with code from the hub.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise BadFile(
            "model: cannot load {name}: config.json: expected the kind of model as model_type, got "
            "{kind}; save it with model.save_pretrained",
            name=clean(name),
            kind=clean(repr(kind))[:40],
        )
    if any(key == "quantization_config" and value for key, value in _nested_items(config)):
        raise BadFile(
            "model: cannot load {name}: config.json: its weights are quantised "
            "(quantization_config), and heads are measured in float32; give the model as it was "
            "before, or save it after model.dequantize()",
            name=clean(name),
        )
    safe: dict[str, Any] = _without_choices(config)
    return safe


def configuration(settings: dict[str, Any], where: str) -> Any:
    """transformers' configuration object of these `safe_settings`, with the model's location."""
    import transformers

    with tempfile.TemporaryDirectory(prefix="headwise-") as folder:
        (Path(folder) / CONFIG).write_text(json.dumps(settings), encoding="utf-8")
        config: Any = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    config._name_or_path = where
    return config


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2), encoding="utf-8")


def write_weights(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write the weights of a model into its folder; needs safetensors."""
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtra.of("safetensors", "inspect") from error
    save_file(tensors, folder / WEIGHTS[0], metadata={"format": "pt"})


def _without_choices(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_choices(v) for k, v in value.items() if not _CHOOSES.fullmatch(k)}
    return [_without_choices(item) for item in value] if isinstance(value, list) else value


def _nested_items(value: Any) -> Iterator[tuple[str, Any]]:
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from _nested_items(item)
    if isinstance(value, dict):
        yield from value.items()
