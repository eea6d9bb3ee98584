"""Plain text: every line a document, or every paragraph."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from headwise.heads.corpus.document import Document
from headwise.heads.corpus.lines import MOST_BYTES, Place, lines
from headwise.lang import Text


def read_lines(file: Path) -> Iterator[Document]:
    """A document for every line that is not blank.

    Raises:
        BadFile: if a line cannot be read.
    """
    for place, line in lines(file):
        if line.strip():
            yield Document(str(place), line.strip())


def read_paragraphs(file: Path) -> Iterator[Document]:
    """A document for every run of lines between blank ones, named by its first.

    Raises:
        BadFile: if a line cannot be read, or a paragraph is longer than a document may be.
    """
    for filled, block in groupby(lines(file), key=lambda each: bool(each[1].strip())):
        if filled:
            yield _paragraph(block)


def _paragraph(block: Iterator[tuple[Place, str]]) -> Document:
    place, first = next(block)
    held, size = [first], len(first.encode())
    for _, line in block:
        size += 1 + len(line.encode())
        if size > MOST_BYTES:
            raise place.wrong(
                Text(
                    "expected at most {most_bytes:,} bytes in a paragraph, this one has "
                    "more; separate documents by blank lines",
                    most_bytes=MOST_BYTES,
                )
            )
        held.append(line)
    return Document(str(place), "\n".join(held).strip())
