"""Documents of a corpus: a text with annotations, its place in a file, and their validation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from headwise.document.text_format import clean
from headwise.errors import BadFile
from headwise.lang import Text


@dataclass(frozen=True)
class Parse:
    """A dependency tree over the words of a text.

    Attributes:
        heads: the index of the head of each word, counted from 0; -1 for the root.
        relations: the name of the relation of each word to its head, such as "det" or "root".
    """

    heads: tuple[int, ...]
    relations: tuple[str, ...]


@dataclass(frozen=True)
class Entity:
    """A named entity of a kind: the words from ``start`` to ``stop``, exclusive."""

    start: int
    stop: int
    kind: str


@dataclass(frozen=True)
class CorpusDocument:
    """A text with annotations. All attributes are untrusted input.

    Attributes:
        name: the file and line for messages, such as "a.jsonl:17".
        text: the input of the model.
        words: (start, stop) of each word in characters; empty without annotation.
        parse: the dependency tree over ``words``; None without annotation.
        entities: the named entities over ``words``; None without annotation.
        target: the decoder input of an encoder-decoder; None without annotation.
        alignment: the gold pairs (query, key) of token indices; None without annotation.
    """

    name: str
    text: str
    words: tuple[tuple[int, int], ...] = ()
    parse: Parse | None = None
    entities: tuple[Entity, ...] | None = None
    target: str | None = None
    alignment: tuple[tuple[int, int], ...] | None = None


MOST_BYTES = 1 << 20  # the most bytes of a line, a document and a text file
LONGEST_NAME = 100  # the most characters of the name of a relation or an entity kind
Spans = tuple[tuple[int, int], ...]  # (start, stop) of each word in characters


@dataclass(frozen=True)
class Place:
    """A line of a file, counted from 1."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{clean(self.file.name)}:{self.line}"


class BadLine(BadFile):
    """An error in a line of a file; `at` adds the place of the line."""

    def at(self, place: Place) -> BadFile:
        """Return the error with the place of the line."""
        where = f"{clean(str(place.file))}:{place.line}"
        return BadFile("corpus: {where}: {problem}", where=where, problem=self.text)


def lines(file: Path) -> Iterator[tuple[Place, str]]:
    r"""Yield every line with its place and without its line break; keep one line in memory.

    Raises `BadFile` if the file cannot be read, or a line is longer than `MOST_BYTES`, is not
    UTF-8, or contains a zero byte.
    """
    name = clean(str(file))
    try:
        if file.exists() and not file.is_file():
            raise BadFile(
                "corpus: expected a file, got {name}, a directory, device or pipe; use "
                "a .txt, .jsonl or .conllu file",
                name=name,
            )
        with file.open("rb") as stream:
            number = 0
            while content := stream.readline(MOST_BYTES + 1):
                number += 1
                place = Place(file, number)
                yield place, _decoded(place, content).removesuffix("\n").removesuffix("\r")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadFile(
            "corpus: cannot read {name}: {reason}; use a text file in UTF-8",
            name=name,
            reason=reason,
        ) from error


def _decoded(place: Place, content: bytes) -> str:
    if len(content) > MOST_BYTES:
        raise BadLine(
            "expected at most {most_bytes:,} bytes in a line, got more; split the line "
            "into several documents",
            most_bytes=MOST_BYTES,
        ).at(place)
    if b"\0" in content:
        raise BadLine("expected text, got a zero byte; use a text file in UTF-8").at(place)
    try:
        return content.decode("utf-8-sig" if place.line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise BadLine(
            "expected UTF-8, got byte 0x{content:02x} in column {start_plus_1}; save the "
            "file as UTF-8",
            content=content[error.start],
            start_plus_1=error.start + 1,
        ).at(place) from error


def blocks(file: Path) -> Iterator[Iterator[tuple[Place, str]]]:
    """Yield the lines of each paragraph of a file; blank lines separate paragraphs."""
    for filled, block in groupby(lines(file), key=lambda line: bool(line[1].strip())):
        if filled:
            yield block


def located(
    place: Place, text: str, words: Sequence[str], sources: Sequence[tuple[Place, str]] = ()
) -> Spans:
    """Return the spans of the words in the text; white space may separate words.

    ``sources`` are the place and the number of each word, if each word is on a separate line.

    Raises `BadFile` if the text does not consist of the words.
    """
    spans, start = [], 0
    for index, word in enumerate(words):
        while start < len(text) and text[start].isspace():
            start += 1
        if not word or not text.startswith(word, start):
            line, number = sources[index] if sources else (place, str(index + 1))
            raise BadLine(
                "word {number} is {word!a}, but the text continues with {rest!a}; list "
                "all words of the text in order",
                number=number,
                word=word[:40],
                rest=text[start : start + 20],
            ).at(line)
        spans.append((start, start + len(word)))
        start += len(word)
    if text[start:].strip():
        raise BadLine(
            "the text continues with {text!a} after the last word; list all words of the "
            "text in order",
            text=text[start:].strip()[:20],
        ).at(sources[-1][0] if sources else place)
    return tuple(spans)


def check_spans(place: Place, text: str, spans: Spans) -> None:
    """Raise `BadFile` unless the spans are within the text and in order."""
    before = 0
    for number, (start, stop) in enumerate(spans, 1):
        if not before <= start <= stop <= len(text):
            raise BadLine(
                "word {number}: expected [start, stop] between {before} and {num_text}, got "
                "[{start}, {stop}]; count characters, and list the words in order",
                number=number,
                start=start,
                stop=stop,
                before=before,
                num_text=len(text),
            ).at(place)
        before = stop


def check_parse(place: Place, words: int, parse: Parse) -> None:
    """Raise `BadFile` unless a parse has a head and a relation for each of the words."""
    for what, count in (("heads", len(parse.heads)), ("relations", len(parse.relations))):
        if count != words:
            raise BadLine(
                "{what}: expected one entry for each of the {words} words, got {count}",
                what=what,
                words=words,
                count=count,
            ).at(place)
    for number, head in enumerate(parse.heads):
        if not -1 <= head < words or head == number:
            raise BadLine(
                "heads: expected -1 for the root or the index of another word from 0 to "
                "{words_minus_1}, got {head} for the word with index {number}; indices start at 0",
                number=number,
                head=head,
                words_minus_1=words - 1,
            ).at(place)
    for name in parse.relations:
        check_name(place, "relations", name)


def check_entities(place: Place, words: int, entities: tuple[Entity, ...]) -> None:
    """Raise `BadFile` unless all entities are within the words."""
    for entity in entities:
        if not 0 <= entity.start < entity.stop <= words:
            raise BadLine(
                "entities: expected [first word, word after the last] within {words} words, "
                "got [{start}, {stop}]; count words from 0",
                start=entity.start,
                stop=entity.stop,
                words=words,
            ).at(place)
        check_name(place, "entities", entity.kind)


def check_name(place: Place, what: str, name: str) -> None:
    """Raise `BadFile` if a name is empty or too long."""
    if not 0 < len(name) <= LONGEST_NAME:
        raise BadLine(
            "{what}: expected names of 1 to {longest_name} characters, got {num_name}",
            what=what,
            longest_name=LONGEST_NAME,
            num_name=len(name),
        ).at(place)


def read_text(file: str) -> str:
    """Read a UTF-8 file of at most `MOST_BYTES` bytes; raise `BadFile` if that fails."""
    name, path = clean(file), Path(file)
    try:
        if path.exists() and not path.is_file():
            raise BadFile(
                "text: expected a file, got {file}, a directory, device or pipe; use a "
                "text file in UTF-8",
                file=name,
            )
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or Text("not UTF-8 text")
        raise BadFile(
            "text: cannot read {file}: {reason}; use a text file in UTF-8", file=name, reason=reason
        ) from error
    if len(content) > MOST_BYTES:
        raise BadFile(
            "text: expected at most {most_bytes} bytes, {file} has more; shorten it, or read "
            "it line by line with --corpus",
            file=name,
            most_bytes=MOST_BYTES,
        )
    return text
