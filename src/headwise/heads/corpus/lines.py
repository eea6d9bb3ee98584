"""The lines of a file that somebody else wrote: read one by one, bounded, and plain text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headwise.document.plain import clean
from headwise.errors import BadFile
from headwise.lang import Text

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
                "corpus: expected a file, got {name}, a directory, device or pipe; give "
                "a file whose name ends in .txt, .jsonl or .conllu",
                name=name,
            )
        with file.open("rb") as stream:
            yield from _lines(file, stream)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadFile(
            "corpus: cannot read {name}: {reason}; give a text file in UTF-8",
            name=name,
            reason=reason,
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
            Text(
                "expected at most {most_bytes:,} bytes in a line, this one has more; break "
                "it into several documents",
                most_bytes=MOST_BYTES,
            )
        )
    if b"\0" in content:
        raise place.wrong(
            Text("expected text, got a zero byte, as binary files have; give a text file in UTF-8")
        )
    try:
        return content.decode("utf-8-sig" if place.line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise place.wrong(
            Text(
                "expected UTF-8, got byte 0x{content:02x} in column {start_plus_1}; save the "
                "file as UTF-8",
                content=content[error.start],
                start_plus_1=error.start + 1,
            )
        ) from error
