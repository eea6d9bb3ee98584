"""Documents of a corpus: text with annotations, its place in a file, and their validation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headwise.document.text_format import clean
from headwise.errors import BadFile
from headwise.lang import Text


@dataclass(frozen=True)
class Parse:
    """A dependency tree over the words of a text.

    Attributes:
        heads: for each word the index of its head, counted from 0; -1 for the root.
        relations: for each word the name of the relation to its head: "det", "obj", "root".
    """

    heads: tuple[int, ...]
    relations: tuple[str, ...]


@dataclass(frozen=True)
class Entity:
    """A named entity: the words from ``start`` to ``stop`` (exclusive), and its kind."""

    start: int
    stop: int
    kind: str


@dataclass(frozen=True)
class CorpusDocument:
    """A text with annotations. All of it is untrusted input.

    Attributes:
        name: its file and line, for messages: "a.jsonl:17".
        text: what the model reads.
        words: (start, stop) in characters of each word; empty without annotation.
        parse: the dependency tree over ``words``; None without annotation.
        entities: named entities over ``words``; None without annotation.
        target: the input of an encoder-decoder's decoder; None without annotation.
        alignment: gold pairs (query, key), in tokens; None without annotation.
    """

    name: str
    text: str
    words: tuple[tuple[int, int], ...] = ()
    parse: Parse | None = None
    entities: tuple[Entity, ...] | None = None
    target: str | None = None
    alignment: tuple[tuple[int, int], ...] | None = None


MOST_BYTES = 1 << 20
"""The longest line, document and text file, in bytes."""


@dataclass(frozen=True)
class Place:
    """A line of a file.

    Attributes:
        file: the file.
        line: counted from 1.
    """

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{clean(self.file.name)}:{self.line}"

    def error(self, problem: Text) -> BadFile:
        """The error for this line."""
        where = f"{clean(str(self.file))}:{self.line}"
        return BadFile("corpus: {where}: {problem}", where=where, problem=problem)


def lines(file: Path) -> Iterator[tuple[Place, str]]:
    r"""Yield every line with its place, without its line break; only one is in memory.

    Raises:
        BadFile: if the file cannot be read, or a line is longer than `MOST_BYTES`, is not UTF-8, or
            holds a zero byte, as binary files do.
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
        raise place.error(
            Text(
                "expected at most {most_bytes:,} bytes in a line, this one has more; break "
                "it into several documents",
                most_bytes=MOST_BYTES,
            )
        )
    if b"\0" in content:
        raise place.error(
            Text("expected text, got a zero byte, as binary files have; give a text file in UTF-8")
        )
    try:
        return content.decode("utf-8-sig" if place.line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise place.error(
            Text(
                "expected UTF-8, got byte 0x{content:02x} in column {start_plus_1}; save the "
                "file as UTF-8",
                content=content[error.start],
                start_plus_1=error.start + 1,
            )
        ) from error


Spans = tuple[tuple[int, int], ...]
"""(start, stop) in characters of each word."""

LONGEST_NAME = 100
"""The largest number of characters in the name of a relation or of a kind of entity."""


def located(
    place: Place, text: str, words: Sequence[str], written: Sequence[tuple[Place, str]] = ()
) -> Spans:
    """The spans of the words in the text, which may be separated by white space only.

    Args:
        place: the place of the text, for messages.
        text: the text.
        words: its words in order.
        written: the line of each word and its number there, if the file has them.

    Raises:
        BadFile: if the text does not consist of these words.
    """
    spans, at = [], 0
    for index, word in enumerate(words):
        while at < len(text) and text[at].isspace():
            at += 1
        if not word or not text.startswith(word, at):
            rest = text[at : at + 20]
            line, number = written[index] if written else (place, str(index + 1))
            raise line.error(
                Text(
                    "word {number} is {word!a}, and the text goes on with {rest!a}; words "
                    "must be those of the text, in its order",
                    number=number,
                    word=word[:40],
                    rest=rest,
                )
            )
        spans.append((at, at + len(word)))
        at += len(word)
    if text[at:].strip():
        raise (written[-1][0] if written else place).error(
            Text(
                "after the last word the text goes on with {text!a}; words must be those of "
                "the text, all of them",
                text=text[at:].strip()[:20],
            )
        )
    return tuple(spans)


def check_spans(place: Place, text: str, spans: Spans) -> None:
    """Check that the words are ascending spans of the text.

    Raises:
        BadFile: if they are not.
    """
    before = 0
    for number, (start, stop) in enumerate(spans, 1):
        if not before <= start <= stop <= len(text):
            raise place.error(
                Text(
                    "word {number} is [{start}, {stop}], expected within {before} to "
                    "{num_text}: characters of the text, each word after the one before",
                    number=number,
                    start=start,
                    stop=stop,
                    before=before,
                    num_text=len(text),
                )
            )
        before = stop


def check_parse(place: Place, words: int, parse: Parse) -> None:
    """Check that a parse has a head and a relation for each of the words.

    Raises:
        BadFile: if it does not.
    """
    for what, count in (("heads", len(parse.heads)), ("relations", len(parse.relations))):
        if count != words:
            raise place.error(
                Text(
                    "{what}: expected one for each of the {words} words, got {count}; a "
                    "parse must be over the words of the text",
                    what=what,
                    words=words,
                    count=count,
                )
            )
    for number, head in enumerate(parse.heads):
        if not -1 <= head < words or head == number:
            raise place.error(
                Text(
                    "heads: word {number} has the head {head}, expected -1 for the root or "
                    "another of the words 0 to {words_minus_1}; count words from 0",
                    number=number,
                    head=head,
                    words_minus_1=words - 1,
                )
            )
    for name in parse.relations:
        check_name(place, "relations", name)


def check_entities(place: Place, words: int, entities: tuple[Entity, ...]) -> None:
    """Check that entities are spans of the words.

    Raises:
        BadFile: if one is not.
    """
    for entity in entities:
        if not 0 <= entity.start < entity.stop <= words:
            raise place.error(
                Text(
                    "entities: [{start}, {stop}] is no run of the {words} words; count words "
                    "from 0, the second number is the one after the last",
                    start=entity.start,
                    stop=entity.stop,
                    words=words,
                )
            )
        check_name(place, "entities", entity.kind)


def check_name(place: Place, what: str, name: str) -> None:
    """Check the length of a name.

    Raises:
        BadFile: if it is empty or too long.
    """
    if not 0 < len(name) <= LONGEST_NAME:
        raise place.error(
            Text(
                "{what}: expected names of 1 to {longest_name} characters, got one of {num_name}",
                what=what,
                longest_name=LONGEST_NAME,
                num_name=len(name),
            )
        )


def read_text(file: str) -> str:
    """The text of a UTF-8 file of at most `MOST_BYTES` bytes.

    Raises:
        BadFile: if it cannot be read, is not UTF-8, or is too large.
    """
    name = clean(file)
    try:
        if not Path(file).is_file() and Path(file).exists():
            raise BadFile(
                "text: expected a file, got {file}, a directory, device or pipe; give a "
                "text file in UTF-8",
                file=name,
            )
        with Path(file).open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or Text("not UTF-8 text")
        raise BadFile(
            "text: cannot read {file}: {reason}; give a text file in UTF-8",
            file=name,
            reason=reason,
        ) from error
    if len(content) > MOST_BYTES:
        raise BadFile(
            "text: {file} has more than {most_bytes} bytes; give a part of it, or read "
            "it line by line with --corpus",
            file=name,
            most_bytes=MOST_BYTES,
        )
    return text
