"""How an attention is cut into blocks of queries, and what is known of those before any weight.

Layers with one mask over one text share it: who may attend to what, how many keys that are, and
what a head that attends to all alike would give.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.heads.capture.pattern import Pattern
from headwise.heads.capture.texts import Place
from headwise.heads.capture.weights import Part, Terms
from headwise.heads.metrics import KeyContext, Metric, Rows
from headwise.heads.statistics import Baseline

BLOCK = 1 << 22
"""How many weights are held at a time while statistics are taken, over batch and heads."""

TOGETHER = 1 << 10
"""Of about how many queries metrics are computed at once, from what is left of the weights."""

MOST_KNOWN = 4
"""How many layouts are remembered: layers with and without a window may take turns."""


@dataclass(frozen=True)
class Asked:
    """What a capture asks of every attention.

    Attributes:
        metrics: what is measured.
        reads: the facts of rows that these look at.
        separators: ids of special tokens such as [SEP].
        punctuation: ids of punctuation.
    """

    metrics: tuple[Metric, ...]
    reads: tuple[str, ...]
    separators: frozenset[int]
    punctuation: frozenset[int]


@dataclass(frozen=True, eq=False)
class Group:
    """Blocks of queries whose metrics are computed at once.

    Attributes:
        parts: the blocks.
        contexts: what the queries of each are offered.
        context: what all of them are.
        baseline: what a head gives that attends to every allowed key alike.
    """

    parts: tuple[Part, ...]
    contexts: tuple[KeyContext, ...]
    context: KeyContext
    baseline: Baseline


@dataclass(frozen=True, eq=False)
class Layout:
    """An attention cut into blocks.

    Attributes:
        groups: all queries, in order.
        pattern, place, size, tokens: what it holds for.
        room: the most weights that a block has.
    """

    groups: tuple[Group, ...]
    pattern: Pattern
    place: Place
    size: tuple[int, ...]
    tokens: int
    room: int

    @classmethod
    def of(cls, terms: Terms, place: Place, asked: Asked) -> "Layout":
        """Cut it, and look at what every query is offered."""
        parts = list(_cut(terms, place))
        groups, first = [], 0
        for last, rows in enumerate(parts):
            if rows.stop - parts[first].start >= TOGETHER or last == len(parts) - 1:
                groups.append(_group(terms, place, asked, parts[first : last + 1]))
                first = last + 1
        made = [part for group in groups for part in group.parts]
        per_row = terms.size[0] * terms.size[1]
        room = max((_count(part.rows) * _count(part.keys) for part in made), default=0) * per_row
        return cls(tuple(groups), terms.pattern, place, terms.size, terms.tokens, room)

    def fits(self, terms: Terms, place: Place) -> bool:
        """Whether it is that of another attention as well."""
        same = (self.size, self.tokens) == (terms.size, terms.tokens)
        return same and self.pattern.alike(terms.pattern) and self.place.alike(place)

    @property
    def queries(self) -> Tensor:
        """(B, H or 1, Lq), the queries that count and see a key."""
        return torch.cat([group.context.queries for group in self.groups], 2)


class Layouts:
    """The layouts of the pass that is running.

    Args:
        asked: what is measured.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._known: list[Layout] = []

    def forget(self) -> None:
        """Of another pass nothing is the same."""
        self._known.clear()

    def of(self, terms: Terms, place: Place) -> Layout:
        """That of an attention: one that is known, or a new one."""
        found = next((each for each in self._known if each.fits(terms, place)), None)
        if found is None:
            found = Layout.of(terms, place, self._asked)
            self._known = [*self._known[1 - MOST_KNOWN :], found]
        return found


def _cut(terms: Terms, place: Place) -> Iterator[slice]:
    """The queries of each block: at most `BLOCK` weights, so more where they reach few keys."""
    batch, heads, length, keys = terms.size
    most = max(1, BLOCK // max(1, batch * heads))
    least = max(1, most // max(1, keys))
    start = 0
    while start < length:
        stop = min(start + least, length)
        while stop < length:
            rows = slice(start, min(2 * stop - start, length))
            reached = _count(terms.reach(rows, place.own(rows, terms.tokens)))
            if _count(rows) * reached > most:
                break
            stop = rows.stop
        yield slice(start, stop)
        start = stop


def _group(terms: Terms, place: Place, asked: Asked, rows: Sequence[slice]) -> Group:
    reads = asked.reads
    parts, contexts, uniform = [], [], []
    for each in rows:
        keys = terms.reach(each, place.own(each, terms.tokens))
        allowed = terms.allowed(each, keys)
        context = _key_context(place, asked, each, keys, allowed[..., terms.within(keys)])
        no_weights = allowed.new_zeros(1, dtype=terms.wide).expand(context.allowed.shape)
        alike = Rows(weights=no_weights, context=context).uniform
        uniform.append(alike.without_inputs(reads))
        contexts.append(context.without_inputs(reads))
        parts.append(Part.of(each, keys, allowed))
    seen = KeyContext.concatenated([each.context for each in uniform], reads)
    baseline = Baseline.of(Rows.concatenated(uniform, seen, reads), asked.metrics)
    return Group(tuple(parts), tuple(contexts), KeyContext.concatenated(contexts, reads), baseline)


def _key_context(
    place: Place, asked: Asked, rows: slice, keys: slice, allowed: Tensor
) -> KeyContext:
    position = None
    if place.offset is not None:
        position = torch.arange(rows.start, rows.stop, device=allowed.device) + place.offset
    tokens = place.tokens
    return KeyContext(
        allowed=allowed,
        counts=place.queries[:, rows],
        position=position,
        first=place.keys.int().argmax(-1),
        separators=_among(tokens, asked.separators),
        tokens=None if tokens is None else tokens.where(place.keys, -1),
        punctuation=_among(tokens, asked.punctuation),
        origin=place.base + keys.start,
        length=place.keys.shape[1],
    )


def _among(tokens: Tensor | None, ids: frozenset[int]) -> Tensor | None:
    if tokens is None or not ids:
        return None
    return torch.isin(tokens, torch.tensor(sorted(ids), device=tokens.device))


def _count(places: slice) -> int:
    return int(places.stop - places.start)
