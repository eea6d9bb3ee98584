"""The files of a model: validate them before they are read, and write converted files."""

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
ADAPTER = "adapter_config.json"  # names another model, which transformers would download
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MOST_WEIGHT_INDEX_BYTES = 2**26  # the largest index, which has a line for each tensor


def check_index(path: Path, name: str) -> tuple[str, ...]:
    """Return the files in an index; raise `BadFile` unless they are safetensors in its folder."""
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
                ".safetensors files in its folder, got {shown}; save the model again with "
                "model.save_pretrained",
                name=clean(name),
                shown=clean(repr(file))[:60],
            )
    return tuple(sorted(files))


def fetch_weights(where: str, name: str, *, local: bool) -> None:
    """Download the weights of a model into the hub's cache; ``local`` uses only the cache.

    Raises `BadFile` if the model has no safetensors or is an adapter, or its index is invalid.
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
            "model: '{name}' has no model.safetensors on the hub, and pickled weights are never "
            "loaded; use a directory saved with model.save_pretrained, or another model",
            name=clean(name),
        )
    for file in check_index(Path(index), name):
        got(file)


def _adapter(name: str) -> BadFile:
    return BadFile(
        "model: {name} is an adapter to another model (adapter_config.json); merge them with "
        "model.merge_and_unload(), and save the result with model.save_pretrained",
        name=clean(name),
    )


def check_complete(name: str, file: str, report: dict[str, Any]) -> None:
    """Raise `BadFile` if weights outside a pooler would be random, by transformers' report."""
    for key, got, wanted in sorted(report.get("mismatched_keys", ())):
        raise BadFile(
            "model: cannot load {name}: {file} does not fit its config.json: {key} has shape "
            "{got}, config.json requires {wanted}; save both with model.save_pretrained",
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
            "model: {name} lacks {num_missing} weights ({shown}); save the "
            "whole model with model.save_pretrained",
            name=clean(name),
            num_missing=len(missing),
            shown=shown,
        )


def check_finite(name: str, model: nn.Module) -> None:
    """Raise `BadFile` if a weight is NaN or infinite."""
    for key, weight in model.named_parameters():
        if not weight.is_floating_point() or torch.isfinite(weight.detach().sum()):
            continue
        wrong = int((~torch.isfinite(weight.detach())).sum())  # finite weights can overflow a sum
        if wrong:
            raise BadFile(
                "model: {name}: {key} has {wrong} weights that are NaN or infinite; use weights "
                "from before the training or the conversion failed",
                name=clean(name),
                key=clean(key),
                wrong=wrong,
            )


CONFIG = "config.json"
_SENTENCE_PIECE = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", *_SENTENCE_PIECE)
"""Most tokenizers need one of these files; byte tokenizers need none."""

TOKENIZERS = (VOCABULARIES[0], "tokenizer_config.json", *VOCABULARIES[1:])
MOST_BYTES = 2**20  # the size of the largest config.json
MOST_LAYERS = 1024
MOST_SIZE = 2**24
_LAYERS = re.compile(r"(?:\w*_)?layers?")
_SIZES = re.compile(
    r"(?:\w*_)?(?:size|dim|embd|d_model|inner|d_ff|d_kv|heads?|positions|embeddings|ctx|groups)"
)


def check_directory(folder: Path, name: str) -> None:
    """Validate the files of a directory before transformers reads them.

    Raises `BadFile` if config, weights or tokenizer is missing, an entry is a device or a pipe,
    config.json is too large, the model is an adapter, or the weights are not safetensors.
    """
    for entry in folder.iterdir():
        if entry.exists() and not entry.is_file() and not entry.is_dir():
            raise BadFile(
                "model: {entry} is a device, pipe or socket; remove it from the directory",
                entry=clean(str(entry)),
            )
    if (folder / ADAPTER).is_file():
        raise _adapter(name)
    if (folder / INDEX).is_file():
        check_index(folder / INDEX, name)
    pickles = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PICKLES)
    if pickles and not any((folder / file).is_file() for file in WEIGHTS):
        raise BadFile(
            "model: the weights of {name} are a pickle ({file}), which can run code and is never "
            "loaded; load the model where you trust it, and save it with model.save_pretrained",
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
            "use the file that save_pretrained wrote",
            name=clean(name),
            most_bytes=MOST_BYTES,
            size=size,
        )


def missing_file(name: str, kind: str) -> BadFile:
    """Return the error for a directory without "config", "weights" or "tokenizer"."""
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
    """Raise `BadFile` if a size or a number of layers is not an integer, negative or too large."""
    for key, value in _entries(config):
        most = MOST_LAYERS if _LAYERS.fullmatch(key) else MOST_SIZE
        if isinstance(value, list | dict | float | None):
            continue
        if not isinstance(value, int) or not 0 <= value <= most:
            raise BadFile(
                "model: config.json of {name}: {key}: expected an integer from 0 to {most}, "
                "got {shown}; use the file that save_pretrained wrote",
                name=clean(name),
                key=clean(key),
                most=most,
                shown=clean(repr(value))[:40],
            )


def part(where: str, names: tuple[str, ...]) -> str:
    """Return the first of these files that exists in a directory, otherwise the first name."""
    return next((name for name in names if (Path(where) / name).is_file()), names[0])


def _entries(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every number of layers and every size, also in sections such as ``text_config``."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _entries(value)
        elif _LAYERS.fullmatch(key) or _SIZES.fullmatch(key):
            yield key, value


_CHOOSES = re.compile(
    r"_?(attn|experts)_implementation(_internal)?"
    r"|auto_map|custom_pipelines|configuration_files|transformers_weights"
)
"""Keys with which transformers runs code from the hub or a package, or reads another file. For
example, it downloads and runs a kernel for an attention with the name "owner/repository"."""


def safe_settings(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the configuration without keys that select code or files, also in its sections.

    Raises `BadFile` if ``model_type`` is missing, or if the weights are quantised, because other
    packages unpack quantised weights, some with code from the hub.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise BadFile(
            "model: cannot load {name}: config.json: expected the architecture as model_type, got "
            "{kind}; save it with model.save_pretrained",
            name=clean(name),
            kind=clean(repr(kind))[:40],
        )
    if any(key == "quantization_config" and value for key, value in _nested_items(config)):
        raise BadFile(
            "model: cannot load {name}: config.json: the weights are quantised "
            "(quantization_config), but heads are measured in float32; use the original model, or "
            "save it after model.dequantize()",
            name=clean(name),
        )
    safe: dict[str, Any] = _without_choices(config)
    return safe


def configuration(settings: dict[str, Any], where: str) -> Any:
    """Return transformers' configuration object for `safe_settings`, with the model's location."""
    import transformers

    with tempfile.TemporaryDirectory(prefix="headwise-") as folder:
        (Path(folder) / CONFIG).write_text(json.dumps(settings), encoding="utf-8")
        config: Any = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    config._name_or_path = where
    return config


def write_json(path: Path, value: object) -> None:
    """Write a value to a JSON file."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2), encoding="utf-8")


def write_weights(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write the weights of a model to its folder; needs safetensors."""
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
