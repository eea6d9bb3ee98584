"""A GGUF file is read bit-identically, or rejected with an error of one line."""

import struct
from pathlib import Path

import pytest
import torch

from headwise.errors import BadFile
from headwise.heads.models.gguf import read


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def entry(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return string(name) + axes + struct.pack("<IQ", kind, offset)


def gguf(values: bytes, count: int, entries: tuple[bytes, ...], content: bytes) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(entries), count) + values + b"".join(entries)
    return head + b"\0" * (-len(head) % 32) + content


VALUES = (
    string("general.architecture") + struct.pack("<I", 8) + string("toy")
    + string("a.list") + struct.pack("<IIQ", 9, 8, 2) + string("x") + string("我")
    + string("a.few") + struct.pack("<IIQ3i", 9, 5, 3, -1, 0, 7)
    + string("a.number") + struct.pack("<If", 6, 0.5)
)  # fmt: skip

NUMBERS = bytes(range(16))
PLAIN = struct.pack("<4f", 1.0, -2.0, 3.0, 0.1)
EIGHT = struct.pack("<e32b", 0.5, *range(-16, 16))
FOUR = struct.pack("<2e", 2.0, -1.0) + bytes(n | (15 - n) << 4 for n in NUMBERS)
HALF = struct.pack("<4e", 1.5, -0.25, 0.0, 65504.0)
ENTRIES = (
    entry("plain", (2, 2), 0, 0),
    entry("eight", (1, 32), 8, 32),
    entry("four", (32,), 3, 96),
    entry("half", (4,), 1, 128),
)
CONTENT = PLAIN + b"\0" * 16 + EIGHT + b"\0" * 30 + FOUR + b"\0" * 12 + HALF
GOOD = gguf(VALUES, 4, ENTRIES, CONTENT)


def at(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "a.gguf").write_bytes(content)
    return tmp_path / "a.gguf"


def test_values_are_read(tmp_path: Path) -> None:
    assert read(at(tmp_path, GOOD)).values == {
        "general.architecture": "toy", "a.list": ["x", "我"], "a.few": [-1, 0, 7], "a.number": 0.5
    }  # fmt: skip


def test_each_kind_of_tensor_is_read_as_the_format_says(tmp_path: Path) -> None:
    tensors = read(at(tmp_path, GOOD)).tensors
    assert torch.equal(tensors["plain"](), torch.tensor([[1.0, -2.0], [3.0, 0.1]]))
    assert torch.equal(tensors["eight"](), 0.5 * torch.arange(-16.0, 16.0)[None])
    low = torch.arange(16.0)
    assert torch.equal(tensors["four"](), 2.0 * torch.cat((low, 15 - low)) - 1)
    assert torch.equal(tensors["half"](), torch.tensor([1.5, -0.25, 0.0, 65504.0]))


@pytest.mark.parametrize("end", [*range(0, len(GOOD), 7), len(GOOD) - 1])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, end: int) -> None:
    with pytest.raises(BadFile, match=r"cannot read a.gguf: it (ends|is not a GGUF file)"):
        read(at(tmp_path, GOOD[:end]))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"<html>" * 20, "is not a GGUF file"),
        (GOOD.replace(b"GGUF\x03", b"GGUF\x09"), "is not a GGUF file"),
        (gguf(string("k") + struct.pack("<I", 99), 1, (), b""), "value type 99"),
        (gguf(string("k") + struct.pack("<IIQ", 9, 9, 1), 1, (), b""), "value type 9 "),
        (gguf(string("k") + struct.pack("<IIQ", 9, 4, 1 << 60), 1, (), b""), "ends too early"),
        (gguf(string("k") + struct.pack("<IQ", 8, 1 << 63), 1, (), b""), "ends too early"),
        (gguf(b"", 0, (entry("w", (32,), 2, 0),), b"\0" * 64), "w has the tensor type 2"),
        (gguf(b"", 0, (entry("w", (1,) * 5, 0, 0),), b"\0" * 64), "w has 5 axes"),
        (gguf(b"", 0, (entry("w", (33,), 8, 0),), b"\0" * 64), "not whole blocks"),
        (gguf(b"", 0, (entry("w", (1 << 40,), 0, 0),), b"\0" * 64), "ends within w"),
        (
            gguf(string("general.alignment") + struct.pack("<II", 4, 0), 1, (), b""),
            "general.alignment is not a size",
        ),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(tmp_path: Path, content: bytes, why: str) -> None:
    with pytest.raises(BadFile, match=why):
        read(at(tmp_path, content))
