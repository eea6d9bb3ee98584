"""Read a GGUF file: its metadata, and its tensors as float32."""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.document.text_format import clean
from headwise.errors import BadFile

if TYPE_CHECKING:
    import mmap

    from torch import Tensor


class BinaryReader:
    """Where a file is being read. Numbers are little-endian.

    Attributes:
        path: the file, for messages.
        content: its bytes.
        at: how many were taken.
    """

    def __init__(self, path: Path, content: "mmap.mmap | bytes") -> None:
        self.path, self.content, self.at = path, content, 0

    def wrong(self, why: str) -> BadFile:
        """The error for a file that is not what it should be."""
        name = clean(self.path.name)
        return BadFile("model: cannot read {name}: {why}; get it again", name=name, why=clean(why))

    def take(self, size: int) -> bytes:
        """The next bytes.

        Raises:
            BadFile: if there are not so many.
        """
        if size > len(self.content) - self.at:
            raise self.wrong("it ends too early")
        self.at += size
        return self.content[self.at - size : self.at]

    def unpack(self, form: str) -> tuple[Any, ...]:
        """The next numbers, in the letters of `struct`."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))


NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
"""The kinds of a value that is one number, as `struct` writes them."""

STRING, ARRAY = 8, 9

KINDS = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}
"""The kinds of tensors: name, numbers in a block, bytes of a block."""

MOST_AXES = 4


@dataclass(frozen=True, eq=False)
class Gguf:
    """A GGUF file.

    Attributes:
        values: what the file says of the model, by its keys.
        tensors: for each name what makes the tensor: outermost axis first, float32.
    """

    values: dict[str, Any]
    tensors: dict[str, Callable[[], "Tensor"]]


def read(path: Path) -> Gguf:
    """The file at ``path``; its tensors are made one at a time, when they are called for.

    Raises:
        BadFile: if it is no such file, ends too early, or holds a kind that is not read here.

    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if _size(path) else b""
    reader = _GgufReader(path, content)
    magic, version, tensors, values = reader.unpack("4sIQQ")
    if magic != b"GGUF" or version not in (2, 3):
        raise reader.wrong("it does not begin like a GGUF file of format 2 or 3")
    known: dict[str, Any] = {}
    for _ in range(values):
        key = reader.string()
        known[key] = reader.value(reader.number("I"))
    entries = [reader.entry() for _ in range(tensors)]
    step = known.get("general.alignment", 32)
    if not isinstance(step, int) or not 1 <= step <= 1 << 16:
        raise reader.wrong("general.alignment is no size")
    start = -(-reader.at // step) * step
    return Gguf(known, {e.name: _maker(reader, e, start) for e in entries})


def _size(path: Path) -> int:
    return path.stat().st_size


@dataclass(frozen=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def bytes(self) -> int:
        _, block, size = KINDS[self.kind]
        return prod(self.shape) // block * size


class _GgufReader(BinaryReader):
    """A place in the file that moves on as things are read."""

    def number(self, form: str) -> Any:
        return self.unpack(form)[0]

    def string(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, count = self.unpack("IQ")
            if inner == STRING:
                return [self.string() for _ in range(count)]
            if inner in NUMBERS:
                if count > len(self.content):
                    raise self.wrong("it ends too early")
                return list(self.unpack(f"{count}{NUMBERS[inner]}"))
        if kind not in NUMBERS:
            raise self.wrong(f"a value of a kind {kind} that is not read here")
        return self.number(NUMBERS[kind])

    def entry(self) -> _Entry:
        name, axes = self.string(), self.number("I")
        if axes > MOST_AXES:
            raise self.wrong(f"{name} has {axes} axes, at most {MOST_AXES} are known")
        shape = tuple(reversed(self.unpack(f"{axes}Q")))
        kind, offset = self.unpack("IQ")
        if kind not in KINDS:
            raise self.wrong(f"{name} is a tensor of a kind {kind} that is not read here")
        if shape and shape[-1] % KINDS[kind][1]:
            raise self.wrong(f"{name} has rows that are no whole blocks")
        return _Entry(name, shape, kind, offset)


def _maker(reader: _GgufReader, entry: _Entry, start: int) -> Callable[[], "Tensor"]:
    begin, end = start + entry.offset, start + entry.offset + entry.bytes
    if end > len(reader.content):
        raise reader.wrong(f"it ends within {entry.name}")
    return lambda: _tensor(reader.content[begin:end], entry)


def _tensor(content: bytes, entry: _Entry) -> "Tensor":
    import torch

    raw = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    name, block, size = KINDS[entry.kind]
    if block == 1:
        kind = torch.float32 if name == "F32" else torch.float16
        return raw.view(kind).float().reshape(entry.shape)
    blocks = raw.view(-1, size)
    scale = blocks[:, :2].contiguous().view(torch.float16).float()  # (blocks, 1)
    if name == "Q8_0":
        return (scale * blocks[:, 2:].view(torch.int8).float()).reshape(entry.shape)
    least = blocks[:, 2:4].contiguous().view(torch.float16).float()
    pairs = blocks[:, 4:]
    numbers = torch.cat((pairs & 15, pairs >> 4), dim=1).float()  # the low halves come first
    return (scale * numbers + least).reshape(entry.shape)
