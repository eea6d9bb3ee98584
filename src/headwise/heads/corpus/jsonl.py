"""JSON lines: every line an object with a text, and what is known about it.

    text        the text
    words       its words: strings, or [start, stop] in characters; optional
    heads       for each word the index of its head from 0, -1 for the root; optional
    relations   for each word the name of the relation to its head; with ``heads``
    entities    [[first word, word after the last, kind], ...]; optional, needs ``words``
    target      what an encoder-decoder's decoder reads; optional
    alignment   [[query, key], ...]; optional

Other keys are left alone: corpora carry names, dates and addresses.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwise.heads.corpus.document import Document, Entity, Parse
from headwise.heads.corpus.lines import Place, lines
from headwise.heads.corpus.spans import Spans, check_entities, check_parse, check_spans, located
from headwise.lang import Text

_HALF = re.compile("[\ud800-\udfff]")
_WORDS = {int: Text("whole numbers"), str: Text("strings")}


def read_jsonl(file: Path) -> Iterator[Document]:
    """A document for every line that is not blank.

    Raises:
        BadFile: if a line cannot be read, is not such an object, or its parts do not fit each
            other.
    """
    for place, line in lines(file):
        if line.strip():
            yield _document(place, _object(place, line))


def _object(place: Place, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise place.wrong(
            Text(
                "expected JSON, got an error in column {colno}: {msg}; write one object a line",
                colno=error.colno,
                msg=error.msg,
            )
        ) from error
    except (RecursionError, ValueError) as error:  # nested too deep, or a number too long
        raise place.wrong(
            Text("expected JSON of a few levels, got one nested too deep or with a number too long")
        ) from error
    if not isinstance(found, dict):
        raise place.wrong(
            Text(
                "expected an object, got {kind}; write {{'text': ...}} with double quotes",
                kind=_kind(found),
            )
        )
    return found


def _document(place: Place, found: dict[str, Any]) -> Document:
    text = _string(place, found, "text")
    if text is None or not text.strip():
        raise place.wrong(Text("text: expected some text, got none; give every object a 'text'"))
    words = _words(place, text, found)
    return Document(
        name=str(place),
        text=text,
        words=words,
        parse=_parse(place, len(words), found),
        entities=_entities(place, len(words), found),
        target=_string(place, found, "target"),
        alignment=_alignment(place, found),
    )


def _words(place: Place, text: str, found: dict[str, Any]) -> Spans:
    given = _list(place, found, "words") or []
    if all(isinstance(word, str) for word in given):
        return located(place, text, given) if given else ()
    spans = _tuples(place, "words", given, (int, int))
    check_spans(place, text, spans)
    return spans


def _parse(place: Place, words: int, found: dict[str, Any]) -> Parse | None:
    heads, relations = _list(place, found, "heads"), _list(place, found, "relations")
    if heads is None and relations is None:
        return None
    for name, entries, kind in (("heads", heads, int), ("relations", relations, str)):
        if entries is None or not all(type(entry) is kind for entry in entries):
            raise place.wrong(
                Text(
                    "{name}: expected a list of {words}; a parse has 'heads' and "
                    "'relations', one of each for every word",
                    name=name,
                    words=_WORDS[kind],
                )
            )
    parse = Parse(tuple(heads or ()), tuple(relations or ()))
    check_parse(place, words, parse)
    return parse


def _entities(place: Place, words: int, found: dict[str, Any]) -> tuple[Entity, ...] | None:
    given = _list(place, found, "entities")
    if given is None:
        return None
    entities = tuple(Entity(*each) for each in _tuples(place, "entities", given, (int, int, str)))
    check_entities(place, words, entities)
    return entities


def _alignment(place: Place, found: dict[str, Any]) -> tuple[tuple[int, int], ...] | None:
    given = _list(place, found, "alignment")
    if given is None:
        return None
    pairs = _tuples(place, "alignment", given, (int, int))
    for query, key in pairs:
        if query < 0 or key < 0:
            raise place.wrong(
                Text(
                    "alignment: expected pairs of places counted from 0, got [{query}, {key}]",
                    query=query,
                    key=key,
                )
            )
    return pairs


def _string(place: Place, found: dict[str, Any], name: str) -> str | None:
    value = found.get(name)
    if value is not None and not isinstance(value, str):
        raise place.wrong(
            Text("{name}: expected a string, got {kind}", name=name, kind=_kind(value))
        )
    if value is not None and _HALF.search(value):
        raise place.wrong(
            Text(
                "{name}: expected whole characters, got half of a surrogate pair; write the "
                "character itself",
                name=name,
            )
        )
    return value


def _list(place: Place, found: dict[str, Any], name: str) -> list[Any] | None:
    value = found.get(name)
    if value is not None and not isinstance(value, list):
        raise place.wrong(Text("{name}: expected a list, got {kind}", name=name, kind=_kind(value)))
    return value


def _tuples(place: Place, name: str, given: list[Any], kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """The entries as tuples; a truth value is no number."""
    for number, entry in enumerate(given, 1):
        fits = isinstance(entry, list) and len(entry) == len(kinds)
        if not fits or [type(each) for each in entry] != list(kinds):
            raise place.wrong(
                f"{name}: expected entries of the form [{', '.join(_WORDS[k].en for k in kinds)}], "
                f"entry {number} is another",
                f"{name}：各项应为 [{'，'.join(_WORDS[k].zh for k in kinds)}]，第 {number} 项不是",
            )
    return tuple(tuple(entry) for entry in given)


def _kind(value: object) -> str:
    return {dict: "object", list: "array", str: "string", bool: "boolean"}.get(
        type(value), "null" if value is None else "number"
    )
