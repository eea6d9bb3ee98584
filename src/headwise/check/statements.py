"""An article as statements: each chain, and what its label and its surroundings say of it."""

import re
from dataclasses import dataclass, replace

from headwise.check.chains import Chain, chains
from headwise.check.labels import Hint, Ref, combined, read_label, read_words
from headwise.check.lines import Line, cut
from headwise.check.nodes import Stack, leaves
from headwise.check.tables import table_chains, with_arrays

SENTENCE = 60
"""A label longer than this is running text, in which a lone letter is no symbol."""


@dataclass(frozen=True)
class Statement:
    """One chain in its place.

    Attributes:
        chain: what is said.
        own: what its label and its line say.
        around: what the lines and headings before it say, the nearest first.
    """

    chain: Chain
    own: Hint
    around: tuple[Hint, ...]


@dataclass
class _Place:
    """Where in the article the reading is."""

    headings: list[tuple[int, Hint]]
    lead: list[Hint]

    def around(self) -> tuple[Hint, ...]:
        return (*self.lead, *(hint for _, hint in reversed(self.headings)))

    def enter(self, level: int, hint: Hint) -> None:
        self.headings = [(at, h) for at, h in self.headings if at < level]
        self.headings.append((level, hint))
        self.lead = []


def read_statements(text: str) -> list[Statement]:
    """Every statement of an article that holds numbers, and every label, in order."""
    place = _Place([], [])
    found: list[Statement] = []
    for group in with_arrays(cut(text)):
        if len(group) > 1:
            said, made = table_chains(group, text, named=any(h.keys for h in place.around()))
        else:
            said, made = _said(group[0], text), chains(group[0], text)
        if group[0].heading:
            place.enter(group[0].heading, read_label(said, prose=True))
            continue
        if all(chain.bare for chain in made):
            hint = _named(said)
            if hint != Hint():
                place.lead = [hint, *place.lead[:1]]
        for chain in made:
            found += [_statement(each, place) for each in _unstacked(chain)]
    return found


def _said(line: Line, text: str) -> str:
    return text[line.tokens[0].start : line.tokens[-1].end] if line.tokens else ""


def _named(said: str) -> Hint:
    """What a line without numbers says: a short one is a label, a long one is running text."""
    return read_label(said, prose=len(said) > SENTENCE)


def _unstacked(chain: Chain) -> list[Chain]:
    """A chain for each head where an array has three axes."""
    stack = next((node for node in chain.nodes if isinstance(node, Stack)), None)
    if stack is None:
        return [chain]
    return [
        replace(chain, nodes=[grid], labels=[*chain.labels, f"head<sup>({head})</sup>"])
        for head, grid in enumerate(stack.grids, start=1)
    ]


def _statement(chain: Chain, place: _Place) -> Statement:
    own = combined([read_label(label, prose=_is_prose(label)) for label in chain.labels])
    if any(label.startswith("head<sup>") for label in chain.labels):
        own = replace(own, head=Ref(own.head.number, "ordinal") if own.head else None)
    line = read_label(chain.before, prose=True)
    after = combined([read_label(words, prose=True) for words in chain.after])
    for said in (after, read_words(chain.before)):
        own = own.filled(replace(said, keys=(), either=None))
    if not own.keys and not own.weight and place.lead:
        own = replace(own, weight=place.lead[0].weight, bias=place.lead[0].bias)
    return Statement(chain, own, (line, *place.around(), after))


def _is_prose(label: str) -> bool:
    return len(label) > SENTENCE or len(re.findall(r"[A-Za-z]{2,} ", label)) > 5


def is_empty(statement: Statement) -> bool:
    """Whether a statement holds no number that could be checked."""
    return statement.chain.bare or not any(leaves(node) for node in statement.chain.nodes)
