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
from headwise.heads.corpus.blame import called

MOST_BYTES = 1 << 30
"""The largest file that is read."""

KEY = "headwise"
"""The name in the header that the JSON stands under."""


def write_tensors(file: Path, tensors: Mapping[str, Tensor], said: Mapping[str, Any]) -> None:
    """Write tensors, in their order, and what is said of them.

    Raises:
        BadFile: if the file cannot be written, or `read_tensors` would not read it; what was there
            stays then.
        MissingExtra: if safetensors is not installed.
    """
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise MissingExtra.of("safetensors", "inspect") from error
    header = json.dumps({**said, "order": list(tensors)})
    content = save({name: each.contiguous() for name, each in tensors.items()}, {KEY: header})
    if len(content) > MOST_BYTES:
        raise BadFile(
            "save: what was measured takes {num_content:,} bytes, and at most "
            "{most_bytes:,} are read again; add --no-names, which takes less, or leave "
            "out --save",
            num_content=len(content),
            most_bytes=MOST_BYTES,
        )
    with called("save", "output"):
        write(file, content)


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, in the order they were written in, and what is said of them.

    Raises:
        BadFile: if it cannot be read, is too large, is damaged, or was not written here. The
            message says why, and leaves the file to the caller, who knows the way out.
        MissingExtra: if safetensors is not installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
        from safetensors.torch import load
    except ImportError as error:
        raise MissingExtra.of("safetensors", "inspect") from error
    try:
        check_size(file, MOST_BYTES)
        with safe_open(str(file), "pt") as opened:
            header = (opened.metadata() or {}).get(KEY, "")
        said = json.loads(header)
        tensors = load(file.read_bytes())
    except BadFile:
        raise
    except FileNotFoundError as error:
        raise BadFile("no such file") from error
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {clean(str(error))[:120]}"
        raise BadFile("damaged ({reason})", reason=reason) from error
    order = said.get("order") if isinstance(said, dict) else None
    fits = isinstance(order, list) and all(isinstance(name, str) for name in order)
    if not fits or sorted(order or ()) != sorted(tensors):
        raise BadFile("its header does not list its tensors")
    return {name: tensors[name] for name in order or ()}, said


def check_size(file: Path, most: int) -> None:
    """Refuse what is there and no file, or larger than may be read.

    Raises:
        BadFile: if it is. The message leaves the file to the caller.
        OSError: if it cannot be looked at.
    """
    if file.exists() and not file.is_file():
        raise BadFile("no file, but a directory, device or pipe")
    if file.exists() and file.stat().st_size > most:
        raise BadFile("too large: more than {most:,} bytes", most=most)
