r"""Read CoNLL-U, the format of Universal Dependencies; each sentence is a document with a parse.

The text is the line ``# text =``; without that line, the tokens are joined, with a space after each
token that lacks ``SpaceAfter=No``. Words are syntactic words. A multiword token (``1-2 don't``) is
split into its words if they concatenate to the token (do, n't). Otherwise (French ``du`` for ``de
le``) the first word spans the token and the other words are empty spans at its end. Empty nodes
(``8.1``) are skipped.

Source: https://universaldependencies.org/format.html
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headwise.heads.corpus.documents import (
    MOST_BYTES,
    BadLine,
    CorpusDocument,
    Parse,
    Place,
    Spans,
    blocks,
    check_name,
    located,
)

COLUMNS = 10
TEXT = "# text ="
_NUMBER = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_RANGE = re.compile(r"([1-9][0-9]{0,5})-([1-9][0-9]{0,5})", re.ASCII)
_EMPTY = re.compile(r"[0-9]{1,6}\.[1-9][0-9]{0,5}", re.ASCII)


@dataclass
class _Sentence:
    """The columns of a sentence while it is read.

    Attributes:
        places: the place of each word in the file.
        tokens: (form, number of words, whether a space follows) of each token.
        sources: the place and the ID of each token: "3", or "1-2" for a multiword token.
        covered: the number of the last word of the last multiword token.
    """

    place: Place
    text: str | None = None
    forms: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    relations: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    tokens: list[tuple[str, int, bool]] = field(default_factory=list)
    sources: list[tuple[Place, str]] = field(default_factory=list)
    covered: int = 0


def read_conllu(file: Path) -> Iterator[CorpusDocument]:
    """Yield a document for each sentence, named after its first line.

    Raises `BadFile` if a line is not CoNLL-U, or words, heads and text are inconsistent.
    """
    for block in blocks(file):
        yield from _sentence(block)


def _sentence(block: Iterator[tuple[Place, str]]) -> Iterator[CorpusDocument]:
    """Yield the document of a sentence; nothing for a block of comments."""
    sentence, size = None, 0
    for place, line in block:
        sentence = sentence or _Sentence(place)
        size += len(line.encode())
        if size > MOST_BYTES:
            raise BadLine(
                "expected at most {most_bytes:,} bytes in a sentence, got more; separate "
                "sentences by blank lines",
                most_bytes=MOST_BYTES,
            ).at(sentence.place)
        if line.startswith(TEXT):
            sentence.text = line.removeprefix(TEXT).strip()
        elif not line.startswith("#"):
            _add_line(sentence, place, line)
    if sentence is not None and sentence.forms:
        yield _document(sentence)


def _add_line(sentence: _Sentence, place: Place, line: str) -> None:
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        raise BadLine(
            "expected {columns} columns separated by tabs, got {num_columns}; use a "
            "file in CoNLL-U",
            columns=COLUMNS,
            num_columns=len(columns),
        ).at(place)
    number, form = columns[:2]
    gap = "SpaceAfter=No" not in columns[9].split("|")
    if _EMPTY.fullmatch(number):
        return
    next_word = len(sentence.forms) + 1
    multiword = _RANGE.fullmatch(number)
    if multiword:
        first, last = int(multiword[1]), int(multiword[2])
        valid = first == next_word and last >= first > sentence.covered
    else:
        first = last = int(number) if _NUMBER.fullmatch(number) else 0
        valid = first == next_word
    if not valid:
        raise BadLine(
            "expected word number {wanted}, got {number!a}; number the words from 1",
            wanted=next_word,
            number=number[:20],
        ).at(place)
    if first > sentence.covered:
        sentence.tokens.append((form, last - first + 1, gap))
        sentence.sources.append((place, number))
    if multiword:
        sentence.covered = last
        return
    sentence.forms.append(form)
    sentence.heads.append(columns[6])
    sentence.relations.append(columns[7])
    sentence.places.append(place)


def _document(sentence: _Sentence) -> CorpusDocument:
    place = sentence.place
    if sentence.covered > len(sentence.forms):
        raise BadLine(
            "a token covers word {covered}, but the sentence has {num_forms} words; list "
            "all words of each token",
            covered=sentence.covered,
            num_forms=len(sentence.forms),
        ).at(sentence.sources[-1][0])
    text = sentence.text
    if text is None:
        text = "".join(form + " " * gap for form, _, gap in sentence.tokens).strip()
    forms = [form for form, _, _ in sentence.tokens]
    words = _words(sentence, located(place, text, forms, sentence.sources))
    return CorpusDocument(str(place), text, words, _parse(sentence))


def _words(sentence: _Sentence, tokens: Spans) -> Spans:
    """Return the spans of the words from the spans of their tokens."""
    spans: list[tuple[int, int]] = []
    for (start, stop), (form, count, _) in zip(tokens, sentence.tokens, strict=True):
        forms = sentence.forms[len(spans) : len(spans) + count]
        if "".join(forms) == form:
            for word in forms:
                spans.append((start, start + len(word)))
                start += len(word)
        else:
            spans += [(start, stop), *[(stop, stop)] * (count - 1)]
    return tuple(spans)


def _parse(sentence: _Sentence) -> Parse | None:
    if all(head == "_" for head in sentence.heads):
        return None
    count = len(sentence.forms)
    for number, (place, head, name) in enumerate(
        zip(sentence.places, sentence.heads, sentence.relations, strict=True), 1
    ):
        valid = head == "0" or _NUMBER.fullmatch(head)
        if not valid or int(head) > count or int(head) == number:
            raise BadLine(
                "word {number}: expected head 0 for the root or another word from 1 to "
                "{count}, got {head!a}",
                number=number,
                head=head[:20],
                count=count,
            ).at(place)
        check_name(place, "relations", name)
    return Parse(tuple(int(head) - 1 for head in sentence.heads), tuple(sentence.relations))
