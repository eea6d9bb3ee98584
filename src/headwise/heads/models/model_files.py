"""The files of a model: which are read, and what is checked before anything is built."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.document.text_format import clean
from headwise.errors import BadFile
from headwise.lang import Text, same

INDEX = "model.safetensors.index.json"
WEIGHTS = ("model.safetensors", INDEX)

ADAPTER = "adapter_config.json"
"""It names another model, which would be got from the hub."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

MOST_WEIGHT_INDEX_BYTES = 2**26
"""The largest index that is read: a line for each tensor."""


def check_files(folder: Path, name: str) -> None:
    """Refuse weights that would be unpickled, an adapter, and files elsewhere.

    Raises:
        BadFile: if the folder has pickled weights alone, is an adapter to another model, or its
            index names anything but safetensors beside it.
    """
    if (folder / ADAPTER).is_file():
        raise adapter(name)
    if (folder / INDEX).is_file():
        check_index(folder / INDEX, name)
    if any((folder / file).is_file() for file in WEIGHTS):
        return
    found = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PICKLES)
    if found:
        raise pickled(name, found[0])


def check_index(path: Path, name: str) -> tuple[str, ...]:
    """The files that an index of weights names: safetensors beside it.

    Raises:
        BadFile: if it names anything else, or cannot be read.
    """
    try:
        if path.stat().st_size > MOST_WEIGHT_INDEX_BYTES:
            raise ValueError(f"more than {MOST_WEIGHT_INDEX_BYTES:,} bytes")
        files = set(json.loads(path.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = clean(f"{type(error).__name__}: {error}")[:100]
        raise BadFile(
            "model: cannot load {name}: {index} is damaged ({reason}); save the model "
            "again with model.save_pretrained",
            name=clean(name),
            index=INDEX,
            reason=reason,
        ) from error
    for file in sorted(files, key=str):
        if not isinstance(file, str) or not _beside(file):
            shown = clean(repr(file))[:60]
            raise BadFile(
                "model: cannot load {name}: {index}: expected the names of .safetensors "
                "files beside it, got {shown}; save the model again with "
                "model.save_pretrained",
                name=clean(name),
                index=INDEX,
                shown=shown,
            )
    return tuple(sorted(files))


def fetch_weights(where: str, name: str, *, local: bool) -> None:
    """Get a model's weights from the hub into its cache, where transformers then finds them.

    Args:
        where: the hub id.
        name: what the model was asked for by.
        local: look only at what the hub once gave.

    Raises:
        BadFile: if it has no safetensors, is an adapter, or its index names other files.
    """
    from transformers.utils.hub import cached_file

    def got(file: str) -> str | None:
        path: str | None = cached_file(
            where, file, local_files_only=local, _raise_exceptions_for_missing_entries=False
        )
        return path

    if got(ADAPTER):
        raise adapter(name)
    if got(WEIGHTS[0]):
        return
    index = got(INDEX)
    if index is None:
        raise BadFile(
            "model: '{name}' has no {file} that can be got from the hub, and "
            "weights that come as a pickle are never opened; give a directory saved with "
            "model.save_pretrained, or another model",
            name=clean(name),
            file=WEIGHTS[0],
        )
    for file in check_index(Path(index), name):
        got(file)


def _beside(file: str) -> bool:
    return file.endswith(".safetensors") and not any(sign in file for sign in "/\\\0:")


def pickled(name: str, file: str) -> BadFile:
    """The error for weights that come as a pickle."""
    return BadFile(
        "model: the weights of {name} are a pickle ({file}), which can hold programs "
        "and is never opened; save them as model.safetensors: load the model where you "
        "trust it, then model.save_pretrained",
        name=clean(name),
        file=clean(file),
    )


def adapter(name: str) -> BadFile:
    """The error for an adapter, which is a change to another model."""
    return BadFile(
        "model: {name} is an adapter to another model ({adapter}); put them together "
        "with model.merge_and_unload(), then model.save_pretrained",
        name=clean(name),
        adapter=ADAPTER,
    )


def check_complete(name: str, file: str, report: dict[str, Any]) -> None:
    """Weights that are missing or of another size would be random: refused, save for the pooler.

    Args:
        name: what the model was asked for by.
        file: where the weights are.
        report: transformers' account of loading.

    Raises:
        BadFile: if there are any.
    """
    for key, got, wanted in sorted(report.get("mismatched_keys", ())):
        raise BadFile(
            "model: cannot load {name}: {file} does not fit its config.json: {key} has "
            "shape {got}, config.json asks for {wanted}; save both with "
            "model.save_pretrained",
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
            "model: {name} lacks {num_missing} weights ({shown}), which would be random; "
            "save the whole model with model.save_pretrained",
            name=clean(name),
            num_missing=len(missing),
            shown=shown,
        )


def check_finite(name: str, model: nn.Module) -> None:
    """Refuse weights that are no numbers.

    Raises:
        BadFile: if one is NaN or infinite.
    """
    for key, weight in model.named_parameters():
        if not weight.is_floating_point() or torch.isfinite(weight.detach().sum()):
            continue
        wrong = int((~torch.isfinite(weight.detach())).sum())  # a sum can be too large by itself
        if wrong:
            raise BadFile(
                "model: {name}: {key} holds {wrong} weights that are NaN or infinite, so "
                "what it computes means nothing; give weights from before the training "
                "or the conversion failed",
                name=clean(name),
                key=clean(key),
                wrong=wrong,
            )


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
