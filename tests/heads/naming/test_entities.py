"""Heads with constructed attention to entities: shares, ratios and p-values computed by hand."""

import math

import pytest
import torch

from headwise.errors import BadValue
from headwise.heads.corpus.documents import Entity
from headwise.heads.names import Head
from headwise.heads.naming.annotations import Entities, permutation
from headwise.heads.sums import Accumulator

LOOKS, AROUND, EQUAL = (Head.parse(f"L0H{number}") for number in range(3))
NAMED = (Entity(1, 3, "person"),)
WORDS = [[1], [2, 3], [4], [5], [6]]


def table(*words: int) -> torch.Tensor:
    """Every token attends to the first piece of each of these words alike; rows of 8 tokens."""
    found = torch.zeros(8, 8)
    for word in words:
        found[:, WORDS[word][0]] = 1 / len(words)
    return found


def counted(times: int = 1) -> Entities:
    found = Entities()
    for _ in range(times):
        planted = {LOOKS: table(1, 2), AROUND: table(0, 3, 4), EQUAL: torch.full((8, 8), 0.125)}
        found.add(planted, WORDS, NAMED)
    return found


@pytest.mark.parametrize(
    ("head", "share", "lift"), [(LOOKS, 1.0, 2.5), (AROUND, 0.0, 0.0), (EQUAL, 0.5, 1.25)]
)
def test_heads_known_by_hand(head: Head, share: float, lift: float) -> None:
    """Two words of five are named: moved round, they get two fifths of all that words get. The
    head that gives to all tokens alike gives more to the word of two."""
    found = counted()
    assert found.share(head) == share
    assert round(found.lift(head), 6) == lift


def test_only_many_texts_show_that_a_head_looks_at_entities() -> None:
    assert counted(3).tail(LOOKS, 2.0) == 0.5**3
    assert counted(40).tail(LOOKS, 2.0) < 1e-9
    assert counted(40).tail(LOOKS, 2.6) == 1.0
    assert counted(40).tail(AROUND) == 1.0


def test_texts_without_entities_or_of_nothing_else_say_nothing() -> None:
    found = Entities()
    found.add({LOOKS: table(1)}, WORDS, ())
    found.add({LOOKS: table(1)}, WORDS, (Entity(0, 5, "work"),))
    assert found.count() == (0, 0)
    assert found.heads() == ()
    assert math.isnan(found.lift(LOOKS))
    assert math.isnan(found.share(LOOKS))
    assert found.tail(LOOKS) == 1.0


def test_texts_merge_and_are_written_and_read() -> None:
    one = counted()
    one.merge(counted(2))
    again = Entities(Accumulator.from_tensors(one.sums.tensors()))
    assert again.count() == (3, 3)
    assert again.heads() == (LOOKS, AROUND, EQUAL)
    assert again.lift(LOOKS) == counted(3).lift(LOOKS)


def test_a_permutation_counts_the_places_that_get_as_much() -> None:
    received = torch.tensor([1.0, 4.0, 2.0, 0.0, 5.0])
    assert permutation(received, (Entity(1, 3, "a"),)) == 2 / 5  # 6; moved: 2, 5, 6, 5
    assert permutation(received, (Entity(4, 5, "a"),)) == 1 / 5
    assert permutation(received, (Entity(3, 4, "a"),)) == 1.0


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (2, 2), (4, 6)])
def test_what_is_no_run_of_the_words_is_refused(start: int, stop: int) -> None:
    with pytest.raises(BadValue, match=r"entities: expected .* within 5 words, got"):
        Entities().add({LOOKS: table(1)}, WORDS, (Entity(start, stop, "a"),))
