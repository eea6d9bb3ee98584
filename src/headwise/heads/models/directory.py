"""What can be said of a model's files before anything is built from them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwise.document.plain import clean
from headwise.errors import BadFile
from headwise.heads.models.weights import WEIGHTS, check_files

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
                f"model: {clean(str(each))} is a device, pipe or socket, and a model is files; "
                "take it away",
                f"model：{clean(str(each))} 是设备、管道或套接字，模型应由文件组成；请移走它",
            )
    check_files(folder, name)
    for kind, files in (("config", (CONFIG,)), ("weights", WEIGHTS), ("tokenizer", TOKENIZERS)):
        if not any((folder / file).is_file() for file in files):
            raise lacks(name, kind)
    size = (folder / CONFIG).stat().st_size
    if size > MOST_BYTES:
        raise BadFile(
            f"model: config.json of {clean(name)}: expected at most {MOST_BYTES:,} bytes, got "
            f"{size:,}; give the one that save_pretrained wrote",
            f"model：{clean(name)} 的 config.json 最多 {MOST_BYTES:,} 字节，收到 {size:,}；"
            "请使用 save_pretrained 写出的文件",
        )


def lacks(name: str, kind: str) -> BadFile:
    """The error for a directory without its "config", "weights" or "tokenizer"."""
    en, zh = {
        "config": ("config.json", "config.json"),
        "weights": (f"weights ({WEIGHTS[0]})", f"权重（{WEIGHTS[0]}）"),
        "tokenizer": (f"tokenizer ({TOKENIZERS[0]})", f"分词器（{TOKENIZERS[0]}）"),
    }[kind]
    return BadFile(
        f"model: the directory {clean(name)} has no {en}; save a model there with "
        "model.save_pretrained and tokenizer.save_pretrained",
        f"model：文件夹 {clean(name)} 缺少 {zh}；请用 model.save_pretrained 和 "
        "tokenizer.save_pretrained 保存模型",
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
                f"model: config.json of {clean(name)}: {clean(key)}: expected a whole number from "
                f"0 to {most}, got {shown}; give the one that save_pretrained wrote",
                f"model：{clean(name)} 的 config.json：{clean(key)} 应为 0 到 {most} 的整数，"
                f"收到 {shown}；请使用 save_pretrained 写出的文件",
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
