"""Compare heads with annotations: dependency relations and named entities."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, unquote

import torch
from torch import Tensor

from headwise.errors import BadValue
from headwise.heads.analysis.attention_maps import between
from headwise.heads.corpus.documents import Entity, Parse
from headwise.heads.names import Head, by_layer
from headwise.heads.sums import RatioEstimate, TextSums, ratio_sums, tail, wilson

Direction = Literal["to head", "from head"]
DIRECTIONS: tuple[Direction, ...] = ("to head", "from head")
REACH = 10  # the largest fixed offset; Clark et al. 2019 used -3 to 2
OFFSETS = torch.arange(-REACH, REACH + 1)
LEFT_OUT = ("root", "punct")
EVERYTHING = "all"  # stands for all relations together: the unlabelled attachment score


@dataclass(frozen=True)
class Offset:
    """The best fixed offset of a relation, from a dependent to its head in words."""

    offset: int
    accuracy: float


def heads_of_layers(sizes: Mapping[str, int]) -> tuple[Head, ...]:
    """Return the heads of all layers, given the number of heads by the name of a layer."""
    layers = {Head.parse(f"{name}H0").layer: count for name, count in sizes.items()}
    return tuple(Head(layer, number) for layer, n in layers.items() for number in range(n))


def _key(relation: str, rest: str) -> str:
    """Return the name of a sum; the name of the relation may contain any character."""
    return f"{quote(relation, safe=':')}/{rest}"


@dataclass
class Syntax(TextSums):
    """The accuracy of each head on each relation, over all texts.

    Attributes:
        sums: the moments of correct predictions for each relation, direction and layer; those of
            each fixed offset; and the sums of the products of both.
    """

    def add(
        self, weights: Mapping[Head, Tensor], words: Sequence[Sequence[int]], parse: Parse
    ) -> None:
        """Add one text.

        Args:
            weights: the attention weights (L, L) of each head, 0 where not allowed.
            words: the tokens of each word; a word without tokens is skipped.
            parse: the dependency tree over the words.

        Raises:
            BadValue: if the parse has another number of words.
        """
        if not len(words) == len(parse.heads) == len(parse.relations):
            raise BadValue(
                "parse: expected one head and relation for each of {num_words} words, "
                "got {num_heads} and {num_relations}; use a parse of these words",
                num_words=len(words),
                num_heads=len(parse.heads),
                num_relations=len(parse.relations),
            )
        arcs_of = {name: torch.tensor(arcs) for name, arcs in _arcs(words, parse).items()}  # (n, 2)
        guesses = {name: _guessed(arcs, len(words)) for name, arcs in arcs_of.items()}
        for name, right in guesses.items():
            count = torch.tensor(len(right))
            self.sums.add(_key(name, "offsets"), ratio_sums(right.sum(0), count))
        layers = by_layer(weights)
        ordered = [head for heads in layers.values() for head in heads]
        table = between(torch.stack([weights[head] for head in ordered]), words, words)
        table.diagonal(dim1=-2, dim2=-1).fill_(-1.0)  # less than any weight, so never the heaviest
        answers = (_heaviest(table, -1), _heaviest(table, -2))  # (H, words) each
        sizes = [len(heads) for heads in layers.values()]
        for name, arcs in arcs_of.items():
            for direction, answer in zip(DIRECTIONS, answers, strict=True):
                hits = (answer[:, arcs[:, 0]] == arcs[:, 1]).sum(-1).double()  # (H,)
                moments = torch.split(ratio_sums(hits, torch.tensor(len(arcs))), sizes)
                products = torch.split(hits[:, None] * guesses[name].sum(0), sizes)
                for layer, own, product in zip(layers, moments, products, strict=True):
                    key = _key(name, f"{direction.replace(' ', '-')}/{layer}")
                    self.sums.add(key, own)
                    self.sums.add(f"{key}/offsets", product)

    def relations(self) -> tuple[str, ...]:
        """Return every relation, the most frequent first, including "all"."""
        keys = [name.split("/") for name in self.sums]
        named = [unquote(parts[0]) for parts in keys if parts[1:] == ["offsets"]]
        return tuple(sorted(named, key=lambda name: (-self.count(name), name)))

    def heads(self) -> tuple[Head, ...]:
        """Return every measured head."""
        start = f"{EVERYTHING}/to-head/"
        names = (n for n in self.sums if n.startswith(start) and not n.endswith("/offsets"))
        return heads_of_layers({name.removeprefix(start): len(self.sums[name]) for name in names})

    def count(self, relation: str) -> int:
        """Return the number of words that have a relation to their head."""
        name = _key(relation, "offsets")
        return int(self.sums[name][0, 2]) if name in self.sums else 0

    def share(self, head: Head, relation: str, direction: Direction) -> RatioEstimate:
        """Return the share of correct predictions of a head among the words of a relation."""
        sums = self.sums.sums.get(self._layer_key(head, relation, direction))
        return RatioEstimate.of(torch.zeros(6) if sums is None else sums[head.number])

    def accuracy(self, head: Head, relation: str, direction: Direction) -> float:
        """Return the accuracy of a head on a relation; NaN without words in the relation."""
        return self.share(head, relation, direction).value

    def interval(
        self, head: Head, relation: str, direction: Direction, confidence: float = 0.95
    ) -> tuple[float, float]:
        """Return the Wilson interval of the accuracy."""
        share = self.share(head, relation, direction)
        return wilson(share.x, share.y, confidence)

    def best(self, relation: str, direction: Direction | None = None) -> tuple[Head, Direction]:
        """Return the head and direction with the most correct predictions of a relation."""
        ways = DIRECTIONS if direction is None else (direction,)
        candidates = [(head, way) for head in self.heads() for way in ways]
        return max(candidates, key=lambda pair: self.share(pair[0], relation, pair[1]).x)

    def baseline(self, relation: str, fitted_on: "Syntax") -> Offset:
        """Return the best fixed offset on ``fitted_on`` and its accuracy on these texts."""
        place = fitted_on.best_offset(relation)
        return Offset(int(OFFSETS[place]), self._rule(relation, place).value)

    def best_offset(self, relation: str) -> int:
        """Return the index in `OFFSETS` with the most correct predictions; the first if tied."""
        name = _key(relation, "offsets")
        if name not in self.sums:
            return REACH - 1  # the previous word
        return int(self.sums[name][:, 1].argmax())

    def tail(
        self, head: Head, relation: str, direction: Direction, *, offset: int, margin: float
    ) -> float:
        """Return the p-value of the hypothesis: accuracy of head ≤ accuracy of offset + ``margin``.

        The test is on the difference in accuracy between head and offset in each text. ``offset``
        is an index in `OFFSETS`, from `best_offset` of other texts.
        """
        own, rule = self.share(head, relation, direction), self._rule(relation, offset)
        products = self.sums.sums.get(f"{self._layer_key(head, relation, direction)}/offsets")
        both = 0.0 if products is None else products[head.number, offset].item()
        total = own.x - rule.x - margin * own.y
        squares = own.xx + rule.xx + margin * margin * own.yy
        squares += 2 * (margin * (rule.xy - own.xy) - both)
        return tail(own.texts, total, squares)

    def _rule(self, relation: str, offset: int) -> RatioEstimate:
        name = _key(relation, "offsets")
        return RatioEstimate.of(self.sums[name][offset] if name in self.sums else torch.zeros(6))

    def _layer_key(self, head: Head, relation: str, direction: Direction) -> str:
        return _key(relation, f"{direction.replace(' ', '-')}/{head.layer}")


def _heaviest(table: Tensor, axis: int) -> Tensor:
    """Return the word with the largest weight; -1 if all weights are 0."""
    largest, place = table.max(axis)
    return place.masked_fill(largest <= 0, -1)


def _arcs(words: Sequence[Sequence[int]], parse: Parse) -> dict[str, list[tuple[int, int]]]:
    """Return the pairs (dependent, head) by relation; nsubj:pass counts as nsubj."""
    arcs: dict[str, list[tuple[int, int]]] = {}
    for dependent, (head, name) in enumerate(zip(parse.heads, parse.relations, strict=True)):
        relation = name.split(":")[0]
        if head < 0 or relation in LEFT_OUT or not (words[dependent] and words[head]):
            continue
        for label in {relation: None, EVERYTHING: None}:
            arcs.setdefault(label, []).append((dependent, head))
    return arcs


def _guessed(arcs: Tensor, words: int) -> Tensor:
    """Return (n, offsets), 1 where a fixed offset, clipped to the text, predicts the head.

    Source: the baseline of Clark et al. 2019, clipped as in their code.
    """
    predicted = (arcs[:, :1] + OFFSETS).clamp(0, words - 1)
    return (predicted == arcs[:, 1:]).double()


SUMS = ("texts", "given", "expected", "gg", "ge", "ee", "asked")
"""The sums of each head: texts, attention to entities, its expected value, their squares and
product, and attention to all words."""

COUNTS = "counts"  # counts of texts with entities, of entities, words in entities and all words


@dataclass
class Entities(TextSums):
    """The attention of each head to named entities, over all texts."""

    def add(
        self,
        weights: Mapping[Head, Tensor],
        words: Sequence[Sequence[int]],
        entities: Collection[Entity],
    ) -> None:
        """Add one text, as in `Syntax.add`; ignore a text in which no or all words are entities.

        Raises `BadValue` if an entity is not within the words.
        """
        inside = _marked(entities, len(words))
        if not 0 < int(inside.sum()) < len(words):
            return
        counts = (1, len(entities), int(inside.sum()), len(words))
        self.sums.add(COUNTS, torch.tensor(counts))
        shifted = torch.stack([inside.roll(by) for by in range(len(words))]).double()
        for layer, heads in by_layer(weights).items():
            table = between(torch.stack([weights[head] for head in heads]), words, words)
            received = table.double().sum(-2)  # (H, words)
            attention = received @ shifted.T  # (H, shifts); shift 0 is the entities
            observed, expected = attention[:, 0], attention.mean(-1)
            one = torch.ones_like(observed)
            sums = (one, observed, expected, observed**2, observed * expected, expected**2)
            self.sums.add(str(layer), torch.stack((*sums, received.sum(-1)), -1))

    def heads(self) -> tuple[Head, ...]:
        """Return every measured head."""
        return heads_of_layers({n: len(self.sums[n]) for n in self.sums if n != COUNTS})

    def count(self) -> tuple[int, int]:
        """Return the number of texts with entities and the number of entities."""
        if COUNTS not in self.sums:
            return 0, 0
        texts, entities, _, _ = self.sums[COUNTS].tolist()
        return int(texts), int(entities)

    def share(self, head: Head) -> float:
        """Return the share of a head's attention to words that goes to entities."""
        row = self._of(head)
        return row["given"] / row["asked"] if row["asked"] else math.nan

    def lift(self, head: Head) -> float:
        """Return the ratio of the attention to entities to its expected value."""
        row = self._of(head)
        return row["given"] / row["expected"] if row["expected"] else math.nan

    def tail(self, head: Head, least: float = 1.0) -> float:
        """Return the one-sided p-value of the hypothesis that the lift is at most ``least``."""
        row = self._of(head)
        squares = row["gg"] - 2 * least * row["ge"] + least * least * row["ee"]
        return tail(int(row["texts"]), row["given"] - least * row["expected"], squares)

    def _of(self, head: Head) -> dict[str, float]:
        if str(head.layer) not in self.sums:
            return dict.fromkeys(SUMS, 0.0)
        row = self.sums[str(head.layer)][head.number].tolist()
        return dict(zip(SUMS, row, strict=True))


def permutation(received: Tensor, entities: Collection[Entity]) -> float:
    """Return the permutation p-value of the attention to entities in one text.

    It is the share of cyclic shifts, including shift 0, with at least as much attention.

    Args:
        received: (words,), the attention of a head to each word of the text.
        entities: spans within the words; other spans raise `BadValue`.

    Example:
        >>> permutation(torch.tensor([0.0, 0.0, 5.0, 1.0]), [Entity(2, 3, "person")])
        0.25
    """
    inside = _marked(entities, len(received)).to(received.dtype)
    attention = torch.stack([inside.roll(by) for by in range(len(received))]) @ received
    return (attention >= attention[0]).double().mean().item()


def _marked(entities: Collection[Entity], words: int) -> Tensor:
    """Return (words,), True in an entity; raise `BadValue` for invalid entities."""
    inside = torch.zeros(words, dtype=torch.bool)
    for entity in entities:
        if not 0 <= entity.start < entity.stop <= words:
            raise BadValue(
                "entities: expected [first word, word after the last] within {words} words, "
                "got [{start}, {stop}]; count words from 0",
                words=words,
                start=entity.start,
                stop=entity.stop,
            )
        inside[entity.start : entity.stop] = True
    return inside
