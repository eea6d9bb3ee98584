"""Measurements of whole attention maps, on patterns with shares computed by hand."""

import pytest
import torch
from torch import Tensor

from headwise.errors import BadValue
from headwise.heads.analysis.attention_maps import variability, vertical_slash

LENGTH = 8
EYE = torch.eye(LENGTH, dtype=torch.float64)
COLUMN = EYE[[2] * LENGTH]
EQUAL = torch.full((LENGTH, LENGTH), 1 / LENGTH, dtype=torch.float64)


@pytest.mark.parametrize(
    ("table", "verticals", "slashes", "share"),
    [
        (EYE, 1, 1, 1.0),
        (COLUMN, 1, 1, 1.0),
        ((COLUMN + EYE) / 2, 1, 1, 1.0),
        (EQUAL, 1, 1, (8 + 8 - 1) / 64),
        (EQUAL, 8, 1, 1.0),
        (EYE.flip(0), 1, 1, 0.125 + 0.125),
    ],
)
def test_what_columns_and_diagonals_hold(
    table: Tensor, verticals: int, slashes: int, share: float
) -> None:
    found = vertical_slash(table[None], verticals=verticals, slashes=slashes)
    assert found.tolist() == [share]


def test_they_are_chosen_by_the_last_queries_alone() -> None:
    """The early rows look at key 5, the last two at key 1: of these the column is chosen."""
    table = EYE[[5] * 6 + [1] * 2]
    late = vertical_slash(table[None], verticals=1, slashes=1, last=2)
    whole = vertical_slash(table[None], verticals=1, slashes=1, last=8)
    assert late.item() < 0.5 < whole.item()


def test_heads_choose_each_for_themselves() -> None:
    found = vertical_slash(torch.stack((EYE, COLUMN)), verticals=1, slashes=1)
    assert found.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["verticals", "slashes", "last"])
def test_numbers_must_be_positive(name: str) -> None:
    given = {"verticals": 1, "slashes": 1, name: 0}
    with pytest.raises(BadValue, match=f"{name}: expected a number >= 1, got 0"):
        vertical_slash(EYE[None], **given)


def test_maps_must_be_square() -> None:
    with pytest.raises(BadValue, match=r"weights: expected \(H, L, L\), got \(1, 2, 8\)"):
        vertical_slash(EYE[None, :2], verticals=1, slashes=1)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (EYE, EYE, 0.0),
        (EYE, EYE.roll(1, 1), 0.5),  # halfway from their mean, each of two
        (EYE, EQUAL, 0.5 * (1 - 1 / LENGTH)),
    ],
)
def test_what_changes_with_the_text(one: Tensor, other: Tensor, expected: float) -> None:
    found = variability(torch.stack((one, other))[:, None], first=LENGTH)
    assert round(found.item(), 12) == expected


def test_only_the_first_tokens_count() -> None:
    changed = EYE.clone()
    changed[6:] = EQUAL[6:]
    both = torch.stack((EYE, changed))[:, None]
    assert variability(both, first=6).item() == 0.0
    assert variability(both, first=8).item() > 0.0


@pytest.mark.parametrize("shape", [(1, 1, 12, 12), (2, 1, 9, 9), (2, 12, 12)])
def test_one_text_or_short_ones_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadValue, match=r"weights: expected \(texts, H, L, L\) with at least 2"):
        variability(torch.ones(shape))
