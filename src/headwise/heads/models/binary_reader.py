"""A binary file that is read from its beginning, and refused where it ends too early."""

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.document.plain import clean
from headwise.errors import BadFile

if TYPE_CHECKING:
    import mmap


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
