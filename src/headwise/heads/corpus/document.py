"""One text of a corpus, with what somebody says about its words."""

from dataclasses import dataclass


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
    """A named entity: the words from ``start`` to before ``stop``, and what kind it is."""

    start: int
    stop: int
    kind: str


@dataclass(frozen=True)
class Document:
    """One text. Everything in it comes from outside: untrusted.

    Attributes:
        name: where it stands in the corpus, for messages and for resuming: "a.jsonl:17".
        text: what the model reads.
        words: (start, stop) in characters of each word; empty where the corpus names none.
        parse: the dependency tree over ``words``; None where the corpus has none.
        entities: named entities over ``words``; None where the corpus marks none.
        target: what an encoder-decoder's decoder reads; None where the corpus has none.
        alignment: gold pairs (query, key), counted in words of target and text where both are
            split into words, otherwise in tokens; None where the corpus has none.
    """

    name: str
    text: str
    words: tuple[tuple[int, int], ...] = ()
    parse: Parse | None = None
    entities: tuple[Entity, ...] | None = None
    target: str | None = None
    alignment: tuple[tuple[int, int], ...] | None = None
