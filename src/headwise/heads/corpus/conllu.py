r"""Read CoNLL-U, the format of Universal Dependencies: a document with a parse for each sentence.

The text is that of ``# text =``; without it, the tokens are joined, with a space after each token
that lacks ``SpaceAfter=No``. Words are syntactic words. A multiword token (``1-2 don't``) is split
into its words if they concatenate to it (do, n't); otherwise (French ``du`` for ``de le``) the
first word spans the token and the others are empty spans at its end. Empty nodes
(``8.1``) are skipped.

Source: https://universaldependencies.org/format.html
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from headwise.heads.corpus.documents import (
    MOST_BYTES,
    CorpusDocument,
    Parse,
    Place,
    Spans,
    check_name,
    lines,
    located,
)
from headwise.lang import Text

COLUMNS = 10
TEXT = "# text ="

_NUMBER = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_RANGE = re.compile(r"([1-9][0-9]{0,5})-([1-9][0-9]{0,5})", re.ASCII)
_EMPTY = re.compile(r"[0-9]{1,6}\.[1-9][0-9]{0,5}", re.ASCII)


@dataclass
class _Sentence:
    """The columns of one sentence.

    Attributes:
        places: the line of each word.
        surface: the tokens, with their numbers of words.
        written: the line of each token, and its ID there: "3", or "1-2" for a multiword token.
        gaps: for each token whether a space follows.
    """

    place: Place
    text: str | None = None
    forms: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    relations: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    surface: list[tuple[str, int]] = field(default_factory=list)
    written: list[tuple[Place, str]] = field(default_factory=list)
    gaps: list[bool] = field(default_factory=list)
    covered: int = 0


def read_conllu(file: Path) -> Iterator[CorpusDocument]:
    """Yield a document for each sentence, named by its first line.

    Raises:
        BadFile: if a line cannot be read or does not have ten columns, or if words, heads and text
            are inconsistent.
    """
    for filled, block in groupby(lines(file), key=lambda line: bool(line[1].strip())):
        if filled:
            yield from _sentence(block)


def _sentence(block: Iterator[tuple[Place, str]]) -> Iterator[CorpusDocument]:
    """The document of a sentence; none for a block of comments."""
    sentence, size = None, 0
    for place, line in block:
        sentence = sentence or _Sentence(place)
        size += len(line.encode())
        if size > MOST_BYTES:
            raise sentence.place.error(
                Text(
                    "expected at most {most_bytes:,} bytes in a sentence, this one has more; "
                    "separate sentences by blank lines",
                    most_bytes=MOST_BYTES,
                )
            )
        if line.startswith(TEXT):
            sentence.text = line.removeprefix(TEXT).strip()
        elif not line.startswith("#"):
            _take(sentence, place, line)
    if sentence is not None and sentence.forms:
        yield _document(sentence)


def _take(sentence: _Sentence, place: Place, line: str) -> None:
    """Add one line of a sentence: a word or a multiword token."""
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        raise place.error(
            Text(
                "expected {columns} columns separated by tabs, got {num_columns}; give a "
                "file in CoNLL-U",
                columns=COLUMNS,
                num_columns=len(columns),
            )
        )
    number, form = columns[:2]
    gap = "SpaceAfter=No" not in columns[9].split("|")
    if _EMPTY.fullmatch(number):
        return
    whole = _RANGE.fullmatch(number)
    if whole:
        first, last = int(whole[1]), int(whole[2])
        if first != len(sentence.forms) + 1 or last < first or sentence.covered >= first:
            raise _misnumbered(sentence, place, number)
        sentence.surface.append((form, last - first + 1))
        sentence.written.append((place, number))
        sentence.gaps.append(gap)
        sentence.covered = last
        return
    if not _NUMBER.fullmatch(number) or int(number) != len(sentence.forms) + 1:
        raise _misnumbered(sentence, place, number)
    if int(number) > sentence.covered:
        sentence.surface.append((form, 1))
        sentence.written.append((place, number))
        sentence.gaps.append(gap)
    sentence.forms.append(form)
    sentence.heads.append(columns[6])
    sentence.relations.append(columns[7])
    sentence.places.append(place)


def _misnumbered(sentence: _Sentence, place: Place, number: str) -> Exception:
    wanted = len(sentence.forms) + 1
    return place.error(
        Text(
            "expected the word {wanted} of the sentence, got {number!a}; number words from 1",
            wanted=wanted,
            number=number[:20],
        )
    )


def _document(sentence: _Sentence) -> CorpusDocument:
    place = sentence.place
    if sentence.covered > len(sentence.forms):
        raise sentence.written[-1][0].error(
            Text(
                "a token reaches to word {covered}, and the sentence has {num_forms}; give "
                "all words of each token",
                covered=sentence.covered,
                num_forms=len(sentence.forms),
            )
        )
    text = _written(sentence) if sentence.text is None else sentence.text
    tokens = [form for form, _ in sentence.surface]
    words = _words(sentence, located(place, text, tokens, sentence.written))
    return CorpusDocument(str(place), text, words, _parse(sentence))


def _written(sentence: _Sentence) -> str:
    pieces = zip(sentence.surface, sentence.gaps, strict=True)
    return "".join(form + " " * gap for (form, _), gap in pieces).strip()


def _words(sentence: _Sentence, tokens: Spans) -> Spans:
    """The spans of the words, from those of their tokens."""
    spans: list[tuple[int, int]] = []
    for (start, stop), (form, count) in zip(tokens, sentence.surface, strict=True):
        forms = sentence.forms[len(spans) : len(spans) + count]
        if "".join(forms) == form:
            for word in forms:
                spans.append((start, start + len(word)))
                start += len(word)
        else:
            spans += [(start, stop), *[(stop, stop)] * (count - 1)]
    return tuple(spans)


def _parse(sentence: _Sentence) -> Parse | None:
    """The dependency tree; None if no word has a head."""
    if all(head == "_" for head in sentence.heads):
        return None
    count = len(sentence.forms)
    for number, (place, head, name) in enumerate(
        zip(sentence.places, sentence.heads, sentence.relations, strict=True), 1
    ):
        known = head == "0" or _NUMBER.fullmatch(head)
        if not known or int(head) > count or int(head) == number:
            raise place.error(
                Text(
                    "word {number} has the head {head!a}, expected 0 for the root or the "
                    "number of another word, 1 to {count}",
                    number=number,
                    head=head[:20],
                    count=count,
                )
            )
        check_name(place, "relations", name)
    return Parse(tuple(int(head) - 1 for head in sentence.heads), tuple(sentence.relations))
