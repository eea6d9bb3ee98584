"""The lines of a file that somebody else wrote: read one by one, bounded, and plain text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headwise.document.plain import clean
from headwise.errors import BadFile

MOST_BYTES = 1 << 20
"""The longest line, and the longest document, in bytes."""


@dataclass(frozen=True)
class Place:
    """A line of a file, for messages and for naming a document.

    Attributes:
        file: the file.
        line: counted from 1.
    """

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{clean(self.file.name)}:{self.line}"

    def wrong(self, en: str, zh: str) -> BadFile:
        """The error for what stands there."""
        where = f"{clean(str(self.file))}:{self.line}"
        return BadFile(f"corpus: {where}: {en}", f"corpus：{where}：{zh}")


def lines(file: Path) -> Iterator[tuple[Place, str]]:
    r"""Every line with its place, without its line break; never more than one is held.

    Raises:
        BadFile: if it is no file that can be read; or a line is longer than `MOST_BYTES`, is not
            UTF-8, or holds a zero byte, as binary files do.
    """
    name = clean(str(file))
    try:
        if file.exists() and not file.is_file():
            raise BadFile(
                f"corpus: expected a file, got {name}, a directory, device or pipe; give a file "
                "whose name ends in .txt, .jsonl or .conllu",
                f"corpus：应为文件，{name} 是文件夹、设备或管道；请给出以 .txt、.jsonl 或 .conllu "
                "结尾的文件",
            )
        with file.open("rb") as stream:
            yield from _lines(file, stream)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadFile(
            f"corpus: cannot read {name}: {reason}; give a text file in UTF-8",
            f"corpus：无法读取 {name}：{reason}；请给出 UTF-8 文本文件",
        ) from error


def _lines(file: Path, stream: BinaryIO) -> Iterator[tuple[Place, str]]:
    number = 0
    while content := stream.readline(MOST_BYTES + 1):
        number += 1
        place = Place(file, number)
        yield place, _text(place, content).removesuffix("\n").removesuffix("\r")


def _text(place: Place, content: bytes) -> str:
    if len(content) > MOST_BYTES:
        raise place.wrong(
            f"expected at most {MOST_BYTES:,} bytes in a line, this one has more; break it into "
            "several documents",
            f"一行最多 {MOST_BYTES:,} 字节，此行更长；请拆成多个文档",
        )
    if b"\0" in content:
        raise place.wrong(
            "expected text, got a zero byte, as binary files have; give a text file in UTF-8",
            "应为文本，却有零字节，像是二进制文件；请给出 UTF-8 文本文件",
        )
    try:
        return content.decode("utf-8-sig" if place.line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise place.wrong(
            f"expected UTF-8, got byte 0x{content[error.start]:02x} in column {error.start + 1}; "
            "save the file as UTF-8",
            f"应为 UTF-8，第 {error.start + 1} 列是字节 0x{content[error.start]:02x}；"
            "请将文件保存为 UTF-8",
        ) from error
