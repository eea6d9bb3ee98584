"""The documents of a file, by what its name ends in; and a look through all of it beforehand."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headwise.document.plain import clean
from headwise.errors import BadFile
from headwise.heads.corpus.conllu import read_conllu
from headwise.heads.corpus.document import Document
from headwise.heads.corpus.jsonl import read_jsonl
from headwise.heads.corpus.txt import read_lines, read_paragraphs

Reader = Callable[[Path], Iterator[Document]]

READERS: tuple[tuple[str, Reader], ...] = (
    (".txt", read_lines),
    (".jsonl", read_jsonl),
    (".conllu", read_conllu),
)
"""What a corpus may be written in, by the end of its name."""


@dataclass(frozen=True)
class Corpus:
    """A file of documents that has been looked through.

    Attributes:
        file: where it is.
        paragraphs: whether a plain text is read by paragraphs in place of lines.
        documents: how many there are.
        sha256: of the file's bytes.
    """

    file: Path
    paragraphs: bool
    documents: int
    sha256: str

    def __iter__(self) -> Iterator[Document]:
        return reader(self.file, paragraphs=self.paragraphs)(self.file)

    def check_unchanged(self) -> None:
        """Whether the file is still what was looked through.

        Raises:
            BadFile: if it is not.
        """
        if _hash(self.file) != self.sha256:
            raise BadFile(
                "corpus: {file} was changed while it was read; run again, and leave it "
                "as it is until the end",
                file=clean(str(self.file)),
            )


def reader(file: Path, *, paragraphs: bool = False) -> Reader:
    """What reads a file of that name.

    Raises:
        BadFile: if its name ends in nothing known, or paragraphs are asked of no plain text.
    """
    found = dict(READERS).get(file.suffix.lower())
    if found is None or (paragraphs and found is not read_lines):
        ends = ", ".join(suffix for suffix, _ in READERS) if found is None else ".txt"
        raise BadFile(
            f"corpus: expected a name that ends in {ends}, got {clean(file.name)}; "
            + ("rename it" if found is None else "only plain text has paragraphs"),
            f"corpus：文件名应以 {ends} 结尾，收到 {clean(file.name)}；"
            + ("请改名" if found is None else "只有纯文本才分段"),
        )
    return read_paragraphs if paragraphs else found


def look_through(
    file: Path, *, paragraphs: bool = False, check: Callable[[Document], None] | None = None
) -> Corpus:
    """Read all of a corpus once, so that what is wrong in it is said before the work begins.

    Args:
        file: what to read.
        paragraphs: read a plain text by paragraphs in place of lines.
        check: called with each document; raises where it cannot be used.

    Raises:
        BadFile: if a document cannot be read, or there is none.
    """
    count = 0
    for document in reader(file, paragraphs=paragraphs)(file):
        count += 1
        if check is not None:
            check(document)
    if not count:
        raise BadFile(
            "corpus: {file} has no document; give a file with some text", file=clean(str(file))
        )
    return Corpus(file, paragraphs, count, _hash(file))


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
