"""Where the words of a text stand in it, and whether what is said about them can be true."""

from collections.abc import Sequence

from headwise.heads.corpus.document import Entity, Parse
from headwise.heads.corpus.lines import Place
from headwise.lang import Text

Spans = tuple[tuple[int, int], ...]
"""(start, stop) in characters of each word."""

LONGEST_NAME = 100
"""Characters in the name of a relation or of a kind of entity."""


def located(
    place: Place, text: str, words: Sequence[str], written: Sequence[tuple[Place, str]] = ()
) -> Spans:
    """Where the words stand in the text: each after the one before, only blanks between.

    Args:
        place: of the text, for messages.
        text: it.
        words: in their order.
        written: for each word its own line and its number there, where the file has them.

    Raises:
        BadFile: if the text is made of other words.
    """
    spans, at = [], 0
    for index, word in enumerate(words):
        while at < len(text) and text[at].isspace():
            at += 1
        if not word or not text.startswith(word, at):
            rest = text[at : at + 20]
            line, number = written[index] if written else (place, str(index + 1))
            raise line.wrong(
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
        raise (written[-1][0] if written else place).wrong(
            Text(
                "after the last word the text goes on with {text!a}; words must be those of "
                "the text, all of them",
                text=text[at:].strip()[:20],
            )
        )
    return tuple(spans)


def check_spans(place: Place, text: str, spans: Spans) -> None:
    """Refuse words that overlap, go backwards or leave the text.

    Raises:
        BadFile: if they do.
    """
    before = 0
    for number, (start, stop) in enumerate(spans, 1):
        if not before <= start <= stop <= len(text):
            raise place.wrong(
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
    """Refuse a parse of another number of words, or with heads that are none of them.

    Raises:
        BadFile: if it does not fit.
    """
    for what, count in (("heads", len(parse.heads)), ("relations", len(parse.relations))):
        if count != words:
            raise place.wrong(
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
            raise place.wrong(
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
    """Refuse entities that are not runs of the words.

    Raises:
        BadFile: if one is not.
    """
    for entity in entities:
        if not 0 <= entity.start < entity.stop <= words:
            raise place.wrong(
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
    """Refuse a name that is empty or too long.

    Raises:
        BadFile: if it is.
    """
    if not 0 < len(name) <= LONGEST_NAME:
        raise place.wrong(
            Text(
                "{what}: expected names of 1 to {longest_name} characters, got one of {num_name}",
                what=what,
                longest_name=LONGEST_NAME,
                num_name=len(name),
            )
        )
