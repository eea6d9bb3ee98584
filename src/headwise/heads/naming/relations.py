"""Whether a head finds the word that a word depends on, for each relation, beside a fixed offset.

A head is asked in both directions. ``to head``: the word that a dependent gives most of its
attention to is its head. ``from head``: of all words, its head gives a dependent most. Words are
merged from their pieces, a word's attention to itself does not count, and special tokens are left
out. The root has no head, and punctuation is no relation anybody attends to: neither counts.

A rule that always answers "the word two places before" finds many heads too. Which offset is best
is fitted on other texts than it is tried on.

Source: Clark et al. 2019, section 4.2 and their code; Voita et al. 2019, section 5.2.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, unquote

import torch
from torch import Tensor

from headwise.errors import BadValue
from headwise.heads.analysis.word_attention import between
from headwise.heads.corpus.documents import Parse
from headwise.heads.names import Head, by_layer
from headwise.heads.statistics.accumulator import Accumulator
from headwise.heads.statistics.inference import RatioEstimate, ratio_sums, tail, wilson

Direction = Literal["to head", "from head"]
DIRECTIONS: tuple[Direction, ...] = ("to head", "from head")

REACH = 10
"""How far a fixed offset may be; theirs was -3 to 2."""

OFFSETS = torch.arange(-REACH, REACH + 1)

LEFT_OUT = ("root", "punct")

EVERYTHING = "all"
"""The name under which all relations are counted together: the unlabelled attachment score."""


@dataclass(frozen=True)
class Offset:
    """The best fixed offset of a relation.

    Attributes:
        offset: how many words after the dependent its head is looked for.
        accuracy: how often it is there, on the texts it is tried on.
    """

    offset: int
    accuracy: float


@dataclass
class Syntax:
    """How often each head finds each relation, over all texts it was held against.

    Attributes:
        sums: moments of right answers for each relation, direction and layer; of those of each
            fixed offset; and the products of both.
    """

    sums: Accumulator = field(default_factory=Accumulator)

    def add(
        self, weights: Mapping[Head, Tensor], words: Sequence[Sequence[int]], parse: Parse
    ) -> None:
        """Take in one text.

        Args:
            weights: of each head (L, L) between tokens, 0 where not allowed.
            words: the tokens of each word; a word without one is not asked for.
            parse: the tree over the words.

        Raises:
            BadValue: if the parse is over another number of words.
        """
        if not len(words) == len(parse.heads) == len(parse.relations):
            raise BadValue(
                "parse: expected one head and relation for each of {num_words} words, "
                "got {num_heads} and {num_relations}; a parse must be over these words",
                num_words=len(words),
                num_heads=len(parse.heads),
                num_relations=len(parse.relations),
            )
        asked = {
            relation: torch.tensor(found)
            for relation, found in _arcs(words, parse).items()  # (n, 2): dependent, head
        }
        guesses = {name: _guessed(arcs, len(words)) for name, arcs in asked.items()}
        for name, right in guesses.items():
            self._add(name, "offsets", ratio_sums(right.sum(0), torch.tensor(len(right))))
        layers = by_layer(weights)
        ordered = [head for heads in layers.values() for head in heads]
        table = between(torch.stack([weights[head] for head in ordered]), words, words)
        table.diagonal(dim1=-2, dim2=-1).fill_(-1.0)  # less than any weight: never the answer
        answers = (_heaviest(table, -1), _heaviest(table, -2))  # (H, words) each
        sizes = [len(heads) for heads in layers.values()]
        for name, arcs in asked.items():
            for direction, answer in zip(DIRECTIONS, answers, strict=True):
                hits = (answer[:, arcs[:, 0]] == arcs[:, 1]).sum(-1).double()  # (H,)
                found = torch.split(ratio_sums(hits, torch.tensor(len(arcs))), sizes)
                both = torch.split(hits[:, None] * guesses[name].sum(0), sizes)
                for layer, own, product in zip(layers, found, both, strict=True):
                    key = f"{direction.replace(' ', '-')}/{layer}"
                    self._add(name, key, own)
                    self._add(name, f"{key}/offsets", product)

    def _add(self, relation: str, rest: str, more: Tensor) -> None:
        self.sums.add(f"{quote(relation, safe=':')}/{rest}", more)

    def merge(self, other: "Syntax") -> None:
        """Take in what was counted elsewhere."""
        self.sums.merge(other.sums)

    def relations(self) -> tuple[str, ...]:
        """Every relation that was seen, the most frequent first; "all" among them."""
        found = [name.split("/") for name in self.sums]
        named = [unquote(parts[0]) for parts in found if parts[1:] == ["offsets"]]
        return tuple(sorted(named, key=lambda name: (-self.count(name), name)))

    def heads(self) -> tuple[Head, ...]:
        """Every head that was asked."""
        start = f"{EVERYTHING}/to-head/"
        return tuple(
            Head(Head.parse(f"{name.removeprefix(start)}H0").layer, number)
            for name, sums in self.sums.sums.items()
            if name.startswith(start) and not name.endswith("/offsets")
            for number in range(len(sums))
        )

    def count(self, relation: str) -> int:
        """How many words stand in a relation to their head."""
        name = f"{quote(relation, safe=':')}/offsets"
        return int(self.sums[name][0, 2]) if name in self.sums else 0

    def share(self, head: Head, relation: str, direction: Direction) -> RatioEstimate:
        """How many of the words of a relation a head finds the head of."""
        found = self._of(head, relation, direction)
        return RatioEstimate.of(torch.zeros(6) if found is None else found[head.number])

    def accuracy(self, head: Head, relation: str, direction: Direction) -> float:
        """That as a number; NaN where no word stands in the relation."""
        return self.share(head, relation, direction).value

    def interval(
        self, head: Head, relation: str, direction: Direction, confidence: float = 0.95
    ) -> tuple[float, float]:
        """Wilson's interval of the accuracy."""
        share = self.share(head, relation, direction)
        return wilson(share.x, share.y, confidence)

    def best(self, relation: str, direction: Direction | None = None) -> tuple[Head, Direction]:
        """The head, and the direction unless it is given, that finds most of a relation."""
        ways = DIRECTIONS if direction is None else (direction,)
        tried = [(head, way) for head in self.heads() for way in ways]
        return max(tried, key=lambda each: self.share(each[0], relation, each[1]).x)

    def baseline(self, relation: str, fitted_on: "Syntax") -> Offset:
        """The best fixed offset of other texts, tried on these."""
        place = fitted_on.best_offset(relation)
        return Offset(int(OFFSETS[place]), self._rule(relation, place).value)

    def best_offset(self, relation: str) -> int:
        """Which of `OFFSETS` is right most often; the first of several."""
        name = f"{quote(relation, safe=':')}/offsets"
        if name not in self.sums:
            return REACH - 1  # the word before
        return int(self.sums[name][:, 1].argmax())

    def tail(
        self, head: Head, relation: str, direction: Direction, *, offset: int, margin: float
    ) -> float:
        """How likely so good a head is by chance if it beats the offset by at most ``margin``.

        Both are tried on the same words, so what is tested is their difference in each text.

        Args:
            head: which.
            relation: of which the heads are found.
            direction: in which the head is asked.
            offset: which of `OFFSETS`, as `best_offset` of other texts says.
            margin: by which share of the words it must be better.
        """
        own = self.share(head, relation, direction)
        rule, products = self._rule(relation, offset), self._of(head, relation, direction, True)
        both = 0.0 if products is None else products[head.number, offset].item()
        total = own.x - rule.x - margin * own.y
        squares = own.xx + rule.xx + margin * margin * own.yy
        squares += 2 * (margin * (rule.xy - own.xy) - both)
        return tail(own.texts, total, squares)

    def _rule(self, relation: str, offset: int) -> RatioEstimate:
        """How many heads a fixed offset finds."""
        name = f"{quote(relation, safe=':')}/offsets"
        return RatioEstimate.of(self.sums[name][offset] if name in self.sums else torch.zeros(6))

    def _of(
        self, head: Head, relation: str, direction: Direction, offsets: bool = False
    ) -> Tensor | None:
        """A layer's moments (H, 6), or products with offsets (H, offsets), if there are any."""
        way = direction.replace(" ", "-")
        name = f"{quote(relation, safe=':')}/{way}/{head.layer}"
        return self.sums.sums.get(f"{name}/offsets" if offsets else name)


def _heaviest(table: Tensor, axis: int) -> Tensor:
    """Which word has the largest weight; -1, which is no word, where none has any."""
    largest, place = table.max(axis)
    return place.masked_fill(largest <= 0, -1)


def _arcs(words: Sequence[Sequence[int]], parse: Parse) -> dict[str, list[tuple[int, int]]]:
    """(dependent, head) of each relation; a subtype such as nsubj:pass counts as its relation."""
    found: dict[str, list[tuple[int, int]]] = {}
    for dependent, (head, name) in enumerate(zip(parse.heads, parse.relations, strict=True)):
        relation = name.split(":")[0]
        if head < 0 or relation in LEFT_OUT or not (words[dependent] and words[head]):
            continue
        for each in {relation: None, EVERYTHING: None}:
            found.setdefault(each, []).append((dependent, head))
    return found


def _guessed(arcs: Tensor, words: int) -> Tensor:
    """(n, offsets), 1 where a fixed offset finds the head; beyond the text it says the last word.

    Source: the baseline of Clark et al. 2019, clipped as in their code.
    """
    said = (arcs[:, :1] + OFFSETS).clamp(0, words - 1)
    return (said == arcs[:, 1:]).double()
