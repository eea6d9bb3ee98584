"""What can be said of a model's files before anything is built from them."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwise.document.plain import clean
from headwise.errors import BadFile
from headwise.heads.models.weight_files import WEIGHTS, check_files
from headwise.lang import Text, same

CONFIG = "config.json"
VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)
"""One of them is what most tokenizers cannot do without; those of bytes have none."""

TOKENIZERS = (VOCABULARIES[0], "tokenizer_config.json", *VOCABULARIES[1:])

MOST_BYTES = 2**20
"""The largest config.json that is read."""

MOST_LAYERS = 1024
MOST_SIZE = 2**24

_LAYERS = re.compile(r"(?:\w*_)?layers?")
_SIZES = re.compile(
    r"(?:\w*_)?(?:size|dim|embd|d_model|inner|d_ff|d_kv|heads?|positions|embeddings|ctx|groups)"
)


def check_directory(folder: Path, name: str) -> None:
    """Say what a directory lacks, before transformers says it in many words.

    Raises:
        BadFile: if config, weights or tokenizer is missing, an entry is a device or a pipe, which
            would be waited for forever, config.json is too large, or the weights are not
            safetensors in this directory.
    """
    for entry in folder.iterdir():
        if entry.exists() and not entry.is_file() and not entry.is_dir():
            raise BadFile(
                "model: {entry} is a device, pipe or socket, and a model is files; take it away",
                entry=clean(str(entry)),
            )
    check_files(folder, name)
    for kind, files in (("config", (CONFIG,)), ("weights", WEIGHTS), ("tokenizer", TOKENIZERS)):
        if not any((folder / file).is_file() for file in files):
            raise missing_file(name, kind)
    size = (folder / CONFIG).stat().st_size
    if size > MOST_BYTES:
        raise BadFile(
            "model: config.json of {name}: expected at most {most_bytes:,} bytes, got "
            "{size:,}; give the one that save_pretrained wrote",
            name=clean(name),
            most_bytes=MOST_BYTES,
            size=size,
        )


def missing_file(name: str, kind: str) -> BadFile:
    """The error for a directory without its "config", "weights" or "tokenizer"."""
    part = {
        "config": same(CONFIG),
        "weights": Text("weights ({file})", file=WEIGHTS[0]),
        "tokenizer": Text("tokenizer ({file})", file=TOKENIZERS[0]),
    }[kind]
    return BadFile(
        "model: the directory {name} has no {part}; save a model there with "
        "model.save_pretrained and tokenizer.save_pretrained",
        name=clean(name),
        part=part,
    )


def check_sizes(config: dict[str, Any], name: str) -> None:
    """Refuse a configuration whose model could not be built in any time or memory.

    Raises:
        BadFile: if a number of layers, or a size, is no whole number, below 0 or too large.
    """
    for key, value in _entries(config):
        most = MOST_LAYERS if _LAYERS.fullmatch(key) else MOST_SIZE
        if isinstance(value, list | dict | float | None):
            continue
        if not isinstance(value, int) or not 0 <= value <= most:
            shown = clean(repr(value))[:40]
            raise BadFile(
                "model: config.json of {name}: {key}: expected a whole number from 0 to "
                "{most}, got {shown}; give the one that save_pretrained wrote",
                name=clean(name),
                key=clean(key),
                most=most,
                shown=shown,
            )


def part(where: str, names: tuple[str, ...]) -> str:
    """The first of some files that a directory has, or else the first name."""
    return next((name for name in names if (Path(where) / name).is_file()), names[0])


def _entries(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every number of layers and every size, in parts such as ``text_config`` too."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _entries(value)
        elif _LAYERS.fullmatch(key) or _SIZES.fullmatch(key):
            yield key, value


_CHOOSES = re.compile(
    r"_?(attn|experts)_implementation(_internal)?"
    r"|auto_map|custom_pipelines|configuration_files|transformers_weights"
)
"""Keys by which transformers takes code from the hub or from a package, or reads another file.

An attention may be named "owner/repository": transformers gets that kernel and runs it.
"""


def safe_settings(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The configuration without what chooses code or files, in its parts too.

    Args:
        config: as it was read.
        name: what the model was asked for by.

    Raises:
        BadFile: if the kind of model is missing, or the weights are quantised: unpacking them
            is the work of other packages' code, some of it got from the hub.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise BadFile(
            "model: cannot load {name}: {config}: expected the kind of model as "
            "model_type, got {kind}; save it with model.save_pretrained",
            name=clean(name),
            config=CONFIG,
            kind=clean(repr(kind))[:40],
        )
    if any(key == "quantization_config" and value for key, value in _nested_items(config)):
        raise BadFile(
            "model: cannot load {name}: {config}: its weights are quantised "
            "(quantization_config), and heads are measured in float32; give the model as "
            "it was before, or save it after model.dequantize()",
            name=clean(name),
            config=CONFIG,
        )
    kept: dict[str, Any] = _without(config)
    return kept


def configuration(settings: dict[str, Any], where: str) -> Any:
    """transformers' configuration of these settings, which are all that it sees of the file.

    Args:
        settings: what `safe_settings` left.
        where: the directory or hub id that the model is of.
    """
    import transformers

    with tempfile.TemporaryDirectory(prefix="headwise-") as folder:
        (Path(folder) / CONFIG).write_text(json.dumps(settings), encoding="utf-8")
        config: Any = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    config._name_or_path = where
    return config


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without(v) for k, v in value.items() if not _CHOOSES.fullmatch(k)}
    return [_without(item) for item in value] if isinstance(value, list) else value


def _nested_items(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key and its value, however deep."""
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from _nested_items(item)
    if isinstance(value, dict):
        yield from value.items()
