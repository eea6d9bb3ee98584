"""Named tensors and what is said of them, in one file that is written whole or not at all.

The file is a safetensors file; what is said of the tensors is JSON in its header. A reader takes
neither on trust.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from headwise.document.files import write
from headwise.document.plain import clean
from headwise.errors import BadFile, MissingExtra

MOST_BYTES = 1 << 30
"""The largest file that is read."""

KEY = "headwise"
"""The name in the header that the JSON stands under."""


def write_tensors(file: Path, tensors: Mapping[str, Tensor], said: Mapping[str, Any]) -> None:
    """Write tensors, in their order, and what is said of them.

    Raises:
        BadFile: if the file cannot be written; what was there stays then.
        MissingExtra: if safetensors is not installed.
    """
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise MissingExtra.of("safetensors", "inspect") from error
    header = json.dumps({**said, "order": list(tensors)})
    write(file, save({name: each.contiguous() for name, each in tensors.items()}, {KEY: header}))


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, in the order they were written in, and what is said of them.

    Raises:
        BadFile: if it cannot be read, is too large, is damaged, or was not written here.
        MissingExtra: if safetensors is not installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
        from safetensors.torch import load
    except ImportError as error:
        raise MissingExtra.of("safetensors", "inspect") from error
    try:
        if file.exists() and (not file.is_file() or file.stat().st_size > MOST_BYTES):
            raise _damaged(file, f"more than {MOST_BYTES:,} bytes, or no file")
        with safe_open(str(file), "pt") as opened:
            header = (opened.metadata() or {}).get(KEY, "")
        said = json.loads(header)
        tensors = load(file.read_bytes())
    except BadFile:
        raise
    except FileNotFoundError as error:
        raise _damaged(file, "no such file") from error
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise _damaged(file, f"{type(error).__name__}: {clean(str(error))[:120]}") from error
    order = said.get("order") if isinstance(said, dict) else None
    fits = isinstance(order, list) and all(isinstance(name, str) for name in order)
    if not fits or sorted(order or ()) != sorted(tensors):
        raise _damaged(file, "its header does not list its tensors")
    return {name: tensors[name] for name in order or ()}, said


def _damaged(file: Path, reason: str) -> BadFile:
    name = clean(str(file))
    return BadFile(
        f"run: expected a file of sums that headwise wrote, got {name} ({reason}); take it away to "
        "begin anew",
        f"run：应为 headwise 写出的统计文件，收到 {name}（{reason}）；移走它即可重新开始",
    )
