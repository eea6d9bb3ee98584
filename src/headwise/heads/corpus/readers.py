"""Read the documents of a file by its extension: plain text, JSON lines or CoNLL-U.

In plain text, every line or every paragraph is a document. In JSON lines, every line is an object
with these keys; all except ``text`` are optional:

    text        the text
    words       the words of the text: strings, or [start, stop] in characters
    heads       for each word the index of its head, counted from 0; -1 for the root
    relations   for each word the name of the relation to its head; requires ``heads``
    entities    [[first word, word after the last, kind], ...]; requires ``words``
    target      the decoder input of an encoder-decoder
    alignment   [[query, key], ...] in token indices

Other keys are ignored.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.document.text_format import clean
from headwise.errors import BadFile
from headwise.heads.corpus.conllu import read_conllu
from headwise.heads.corpus.documents import (
    MOST_BYTES,
    BadLine,
    CorpusDocument,
    Entity,
    Parse,
    Place,
    Spans,
    blocks,
    check_entities,
    check_parse,
    check_spans,
    lines,
    located,
)
from headwise.lang import Text, joined

Reader = Callable[[Path], Iterator[CorpusDocument]]


def read_lines(file: Path) -> Iterator[CorpusDocument]:
    """Yield a document for each non-blank line of plain text."""
    for place, line in lines(file):
        if line.strip():
            yield CorpusDocument(str(place), line.strip())


def read_paragraphs(file: Path) -> Iterator[CorpusDocument]:
    """Yield a document for each paragraph of plain text, named after its first line."""
    for block in blocks(file):
        yield _paragraph(block)


def _paragraph(block: Iterator[tuple[Place, str]]) -> CorpusDocument:
    place, first = next(block)
    paragraph, size = [first], len(first.encode())
    for _, line in block:
        size += 1 + len(line.encode())
        if size > MOST_BYTES:
            raise BadLine(
                "expected at most {most_bytes:,} bytes in a paragraph, got more; "
                "separate documents by blank lines",
                most_bytes=MOST_BYTES,
            ).at(place)
        paragraph.append(line)
    return CorpusDocument(str(place), "\n".join(paragraph).strip())


_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS = {int: Text("integers"), str: Text("strings")}


def read_jsonl(file: Path) -> Iterator[CorpusDocument]:
    """Yield a document for each non-blank line of JSON; raise `BadFile` if a line is invalid."""
    for place, line in lines(file):
        if line.strip():
            yield _document(place, _object(place, line))


def _object(place: Place, line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadLine(
            "expected JSON, got an error in column {colno}: {msg}; write one object per line",
            colno=error.colno,
            msg=error.msg,
        ).at(place) from error
    except (RecursionError, ValueError) as error:  # nested too deep, or a number too long
        raise BadLine(
            "expected JSON without deep nesting or very long numbers; simplify the line"
        ).at(place) from error
    if not isinstance(data, dict):
        raise BadLine(
            "expected an object, got {kind}; write {{'text': ...}} with double quotes",
            kind=_kind(data),
        ).at(place)
    return data


def _document(place: Place, data: dict[str, Any]) -> CorpusDocument:
    text = _string(place, data, "text")
    if text is None or not text.strip():
        raise BadLine("text: expected some text, got none; every object needs a 'text'").at(place)
    words = _words(place, text, data)
    return CorpusDocument(
        name=str(place),
        text=text,
        words=words,
        parse=_parse(place, len(words), data),
        entities=_entities(place, len(words), data),
        target=_string(place, data, "target"),
        alignment=_alignment(place, data),
    )


def _words(place: Place, text: str, data: dict[str, Any]) -> Spans:
    values = _list(place, data, "words") or []
    if all(isinstance(word, str) for word in values):
        return located(place, text, values) if values else ()
    spans = _tuples(place, "words", values, (int, int))
    check_spans(place, text, spans)
    return spans


def _parse(place: Place, words: int, data: dict[str, Any]) -> Parse | None:
    heads, relations = _list(place, data, "heads"), _list(place, data, "relations")
    if heads is None and relations is None:
        return None
    for name, entries, kind in (("heads", heads, int), ("relations", relations, str)):
        if entries is None or not all(type(entry) is kind for entry in entries):
            raise BadLine(
                "{name}: expected a list of {words}; a parse needs 'heads' and "
                "'relations' with one entry for each word",
                name=name,
                words=_WORDS[kind],
            ).at(place)
    parse = Parse(tuple(heads or ()), tuple(relations or ()))
    check_parse(place, words, parse)
    return parse


def _entities(place: Place, words: int, data: dict[str, Any]) -> tuple[Entity, ...] | None:
    values = _list(place, data, "entities")
    if values is None:
        return None
    rows = _tuples(place, "entities", values, (int, int, str))
    entities = tuple(Entity(*row) for row in rows)
    check_entities(place, words, entities)
    return entities


def _alignment(place: Place, data: dict[str, Any]) -> tuple[tuple[int, int], ...] | None:
    values = _list(place, data, "alignment")
    if values is None:
        return None
    pairs = _tuples(place, "alignment", values, (int, int))
    for query, key in pairs:
        if query < 0 or key < 0:
            raise BadLine(
                "alignment: expected token indices of at least 0, got [{query}, {key}]",
                query=query,
                key=key,
            ).at(place)
    return pairs


def _string(place: Place, data: dict[str, Any], name: str) -> str | None:
    value = data.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        kind = _kind(value)
        raise BadLine("{name}: expected a string, got {kind}", name=name, kind=kind).at(place)
    if _SURROGATE.search(value):
        raise BadLine(
            "{name}: expected whole characters, got half of a surrogate pair; write the "
            "complete character",
            name=name,
        ).at(place)
    return value


def _list(place: Place, data: dict[str, Any], name: str) -> list[Any] | None:
    value = data.get(name)
    if value is not None and not isinstance(value, list):
        kind = _kind(value)
        raise BadLine("{name}: expected a list, got {kind}", name=name, kind=kind).at(place)
    return value


def _tuples(place: Place, name: str, values: list[Any], kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """Return the entries as tuples of these types; a boolean is not an integer."""
    for number, entry in enumerate(values, 1):
        fits = isinstance(entry, list) and len(entry) == len(kinds)
        if not fits or [type(value) for value in entry] != list(kinds):
            raise BadLine(
                "{name}: expected entries of the form [{form}], but entry {number} differs",
                name=name,
                form=joined(Text(", "), [_WORDS[kind] for kind in kinds]),
                number=number,
            ).at(place)
    return tuple(tuple(entry) for entry in values)


def _kind(value: object) -> str:
    return {dict: "object", list: "array", str: "string", bool: "boolean"}.get(
        type(value), "null" if value is None else "number"
    )


READERS = ((".txt", read_lines), (".jsonl", read_jsonl), (".conllu", read_conllu))
"""The reader of each corpus format, by file extension."""


@dataclass(frozen=True)
class Corpus:
    """A file whose documents have been validated.

    Attributes:
        file: the path of the file.
        paragraphs: whether a document of plain text is a paragraph instead of a line.
        documents: the number of documents.
        sha256: the hash of the bytes of the file.
    """

    file: Path
    paragraphs: bool
    documents: int
    sha256: str

    def __iter__(self) -> Iterator[CorpusDocument]:
        return reader(self.file, paragraphs=self.paragraphs)(self.file)

    def check_unchanged(self) -> None:
        """Raise `BadFile` if the file has changed since it was validated."""
        if file_hash(self.file) != self.sha256:
            raise BadFile(
                "corpus: {file} was changed during the run; run again without changing the file",
                file=clean(str(self.file)),
            )


def reader(file: Path, *, paragraphs: bool = False) -> Reader:
    """Return the reader for a file extension; raise `BadFile` if there is none."""
    read = dict(READERS).get(file.suffix.lower())
    if read is None or (paragraphs and read is not read_lines):
        suffixes = ", ".join(suffix for suffix, _ in READERS) if read is None else ".txt"
        raise BadFile(
            "corpus: expected the file extension {suffixes}, got {name}; {remedy}",
            suffixes=suffixes,
            name=clean(file.name),
            remedy=Text("rename it") if read is None else Text("--paragraphs needs plain text"),
        )
    return read_paragraphs if paragraphs else read


def look_through(
    file: Path, *, paragraphs: bool = False, check: Callable[[CorpusDocument], None] | None = None
) -> Corpus:
    """Validate a corpus by reading it once, so errors are raised before the measurement.

    ``check`` is called with each document and may raise an error.

    Raises `BadFile` if a document cannot be read, or there is no document.
    """
    count = 0
    for document in reader(file, paragraphs=paragraphs)(file):
        count += 1
        if check is not None:
            check(document)
    if not count:
        name = clean(str(file))
        raise BadFile("corpus: {file} has no document; use a file with some text", file=name)
    return Corpus(file, paragraphs, count, file_hash(file))


def file_hash(file: Path) -> str:
    """Return the SHA-256 hash of the bytes of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
