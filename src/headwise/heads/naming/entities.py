"""Attention to named entities, compared with other spans of the same lengths.

The attention to the words of entities is not informative by itself: they may be many, or at places
that every head attends to. So the entities of a text are shifted together, cyclically, and the mean
attention to the shifted spans is the expected value.

Source: the permutation of spans is ours; Clark et al. 2019, section 4.1, for words of pieces.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.errors import BadValue
from headwise.heads.analysis.attention_maps import between
from headwise.heads.corpus.documents import Entity
from headwise.heads.names import Head, by_layer
from headwise.heads.statistics.sums import Accumulator, tail

SUMS = ("texts", "given", "expected", "gg", "ge", "ee", "asked")
"""For each head: texts, attention to entities, its expected value, the squares and the product of
both, and attention to all words."""

COUNTS = "counts"
"""Texts with entities, their entities, words in entities, and all words."""


@dataclass
class Entities:
    """Attention of each head to named entities, over all texts."""

    sums: Accumulator = field(default_factory=Accumulator)

    def add(
        self,
        weights: Mapping[Head, Tensor],
        words: Sequence[Sequence[int]],
        entities: Collection[Entity],
    ) -> None:
        """Add one text; a text without entities or of entities alone is ignored.

        Args:
            weights: of each head (L, L) between tokens, 0 where not allowed.
            words: the tokens of each word.
            entities: spans of the words.

        Raises:
            BadValue: if an entity is no span of the words.
        """
        inside = _marked(entities, len(words))
        if not 0 < int(inside.sum()) < len(words):
            return
        counted = (1, len(entities), int(inside.sum()), len(words))
        self.sums.add(COUNTS, torch.tensor(counted))
        moved = torch.stack([inside.roll(by) for by in range(len(words))]).double()
        for layer, heads in by_layer(weights).items():
            table = between(torch.stack([weights[head] for head in heads]), words, words)
            received = table.double().sum(-2)  # (H, words)
            attention = received @ moved.T  # (H, shifts); the first is where the entities are
            observed, expected = attention[:, 0], attention.mean(-1)
            one = torch.ones_like(observed)
            sums = (one, observed, expected, observed**2, observed * expected, expected**2)
            self.sums.add(str(layer), torch.stack((*sums, received.sum(-1)), -1))

    def merge(self, other: "Entities") -> None:
        """Add other sums."""
        self.sums.merge(other.sums)

    def heads(self) -> tuple[Head, ...]:
        """Every measured head."""
        return tuple(
            Head(Head.parse(f"{name}H0").layer, number)
            for name in self.sums
            if name != COUNTS
            for number in range(len(self.sums[name]))
        )

    def count(self) -> tuple[int, int]:
        """The number of texts with entities, and of entities."""
        if COUNTS not in self.sums:
            return 0, 0
        texts, entities, _, _ = self.sums[COUNTS].tolist()
        return int(texts), int(entities)

    def share(self, head: Head) -> float:
        """The share of a head's attention to words that goes to entities."""
        row = self._of(head)
        return row["given"] / row["asked"] if row["asked"] else math.nan

    def lift(self, head: Head) -> float:
        """The ratio of the attention to entities to its expected value."""
        row = self._of(head)
        return row["given"] / row["expected"] if row["expected"] else math.nan

    def tail(self, head: Head, least: float = 1.0) -> float:
        """The one-sided p-value of the lift if the true lift is at most ``least``."""
        row = self._of(head)
        squares = row["gg"] - 2 * least * row["ge"] + least * least * row["ee"]
        return tail(int(row["texts"]), row["given"] - least * row["expected"], squares)

    def _of(self, head: Head) -> dict[str, float]:
        if str(head.layer) not in self.sums:
            return dict.fromkeys(SUMS, 0.0)
        row = self.sums[str(head.layer)][head.number].tolist()
        return dict(zip(SUMS, row, strict=True))


def permutation(received: Tensor, entities: Collection[Entity]) -> float:
    """The permutation p-value of the attention to entities in one text.

    Args:
        received: (words,), the attention of a head to each word of the text.
        entities: spans of the words.

    Returns:
        The share of all cyclic shifts, the identity included, with as much attention.

    Raises:
        BadValue: if an entity is no span of the words.

    Example:
        >>> permutation(torch.tensor([0.0, 0.0, 5.0, 1.0]), [Entity(2, 3, "person")])
        0.25
    """
    inside = _marked(entities, len(received)).to(received.dtype)
    moved = torch.stack([inside.roll(by) for by in range(len(received))])
    attention = moved @ received
    return (attention >= attention[0]).double().mean().item()


def _marked(entities: Collection[Entity], words: int) -> Tensor:
    """(words,), True in an entity."""
    inside = torch.zeros(words, dtype=torch.bool)
    for entity in entities:
        if not 0 <= entity.start < entity.stop <= words:
            raise BadValue(
                "entities: expected runs of the {words} words, got [{start}, {stop}]; "
                "count words from 0, the second number is after the last",
                words=words,
                start=entity.start,
                stop=entity.stop,
            )
        inside[entity.start : entity.stop] = True
    return inside
