"""What can be said of a model's files before anything is built from them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwise.document.plain import clean
from headwise.errors import BadFile
from headwise.heads.models.weights import WEIGHTS, check_files
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


def complete(folder: Path, name: str) -> None:
    """Say what a directory lacks, before transformers says it in many words.

    Raises:
        BadFile: if config, weights or tokenizer is missing, an entry is a device or a pipe, which
            would be waited for forever, config.json is too large, or the weights are not
            safetensors in this directory.
    """
    for each in folder.iterdir():
        if each.exists() and not each.is_file() and not each.is_dir():
            raise BadFile(
                "model: {each} is a device, pipe or socket, and a model is files; take it away",
                each=clean(str(each)),
            )
    check_files(folder, name)
    for kind, files in (("config", (CONFIG,)), ("weights", WEIGHTS), ("tokenizer", TOKENIZERS)):
        if not any((folder / file).is_file() for file in files):
            raise lacks(name, kind)
    size = (folder / CONFIG).stat().st_size
    if size > MOST_BYTES:
        raise BadFile(
            "model: config.json of {name}: expected at most {most_bytes:,} bytes, got "
            "{size:,}; give the one that save_pretrained wrote",
            name=clean(name),
            most_bytes=MOST_BYTES,
            size=size,
        )


def lacks(name: str, kind: str) -> BadFile:
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


def bounded(config: dict[str, Any], name: str) -> None:
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
