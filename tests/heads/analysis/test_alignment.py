"""The agreement of heads with gold pairs, for values computed by hand."""

import math

import pytest
import torch
from torch import Tensor

from headwise.errors import BadValue
from headwise.heads.analysis.alignment import Alignment
from headwise.heads.names import Head

HEAD, OTHER = Head.parse("cross.L1H0"), Head.parse("cross.L1H1")
GOLD = ((0, 0), (1, 1), (2, 2))
EYE = torch.eye(3, 4, dtype=torch.float64)
EQUAL = torch.full((3, 4), 0.25, dtype=torch.float64)
SHIFTED = EYE[:, [3, 0, 1, 2]]


def scored(table: Tensor, *pairs: tuple[int, int]) -> Alignment:
    found = Alignment()
    found.add({HEAD: table}, pairs or GOLD)
    return found


@pytest.mark.parametrize(
    ("table", "accuracy", "weight", "hits"),
    [
        (EYE, 1.0, 1.0, 6),
        (SHIFTED, 0.0, 0.0, 0),
        (0.75 * EYE + 0.25 * EYE[[0, 0, 0]], 1.0, 2.5 / 3, 6),
        (EQUAL, 1 / 3, 0.25, 2),
    ],
)
def test_heads_known_by_hand(table: Tensor, accuracy: float, weight: float, hits: int) -> None:
    found = scored(table)
    assert found.accuracy(HEAD) == accuracy
    assert found.mean_weight(HEAD) == weight
    assert found.error_rate(HEAD) == 1 - hits / 6


def test_any_of_several_gold_keys_is_right_and_their_weight_adds_up() -> None:
    found = scored(EQUAL, (0, 1), (0, 0), (2, 3))
    assert found.accuracy(HEAD) == 0.5
    assert found.mean_weight(HEAD) == (0.5 + 0.25) / 2


def test_the_published_error_rate_counts_sure_and_possible_pairs() -> None:
    """Och & Ney: A of three links, one sure and one more possible, and S of two links."""
    found = Alignment()
    found.add({HEAD: EYE}, ((0, 0), (1, 2)), possible=((1, 1),), queries=torch.ones(3).bool())
    assert found.error_rate(HEAD) == 1 - (1 + 2) / (3 + 2)
    assert found.accuracy(HEAD) == 0.5, "a possible pair is not the gold one"


def test_only_the_keys_offered_are_chosen_from() -> None:
    table = torch.tensor([[0.7, 0.2, 0.1, 0.0]] * 3)
    found = Alignment()
    found.add({HEAD: table}, ((0, 1),), keys=torch.tensor([False, True, True, True]))
    assert found.accuracy(HEAD) == 1.0
    assert scored(table, (0, 1)).accuracy(HEAD) == 0.0


def test_texts_merge_pooled_over_queries() -> None:
    one, other = scored(EYE), scored(SHIFTED, (0, 2))
    one.merge(other)
    assert one.accuracy(HEAD) == 3 / 4
    assert one.heads() == (HEAD,)


def test_heads_are_kept_apart() -> None:
    found = Alignment()
    found.add({HEAD: EYE, OTHER: SHIFTED}, GOLD)
    assert (found.accuracy(HEAD), found.accuracy(OTHER)) == (1.0, 0.0)


def test_without_a_query_there_is_no_score() -> None:
    found = Alignment()
    nobody = torch.zeros(3).bool()
    found.add({HEAD: EYE}, GOLD, queries=nobody)
    assert math.isnan(found.accuracy(HEAD))
    found.sums.sums[str(HEAD)] = torch.zeros(7, dtype=torch.float64)
    assert math.isnan(found.error_rate(HEAD))


@pytest.mark.parametrize("pairs", [(), ((3, 0),), ((0, 4),), ((-1, 0),)])
def test_pairs_outside_of_the_weights_are_refused(pairs: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(BadValue, match=r"pairs: expected pairs \(query, key\) below \(3, 4\)"):
        Alignment().add({HEAD: EYE}, pairs)


@pytest.mark.parametrize("name", ["queries", "keys"])
def test_masks_of_another_length_are_refused(name: str) -> None:
    with pytest.raises(BadValue, match=f"{name}: expected a boolean mask of length"):
        Alignment().add({HEAD: EYE}, GOLD, **{name: torch.ones(7).bool()})
