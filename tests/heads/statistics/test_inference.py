"""Published intervals, tail probabilities and corrections, to all printed digits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.heads.sums import (
    MANY,
    RatioEstimate,
    holm,
    ratio_sums,
    t_quantile,
    t_tail,
    tail,
    wilson,
)


@pytest.mark.parametrize(
    ("hits", "count", "published"),
    [
        (81, 263, "0.2553 0.3662"),
        (15, 148, "0.0624 0.1605"),
        (0, 20, "0.0000 0.1611"),
        (1, 29, "0.0061 0.1718"),
    ],
)
def test_wilson_intervals_of_newcombe_1998(hits: int, count: int, published: str) -> None:
    low, high = wilson(hits, count)
    assert f"{low:.4f} {high:.4f}" == published


def test_of_nothing_there_is_no_interval() -> None:
    assert all(math.isnan(each) for each in wilson(0, 0))


@pytest.mark.parametrize(
    ("t", "freedom", "printed"),
    [
        (12.706, 1, "0.0250"),
        (4.303, 2, "0.0250"),
        (2.015, 5, "0.0500"),
        (2.764, 10, "0.0100"),
        (2.045, 29, "0.0250"),
        (1.645, 10 * MANY, "0.0500"),
        (0.0, 7, "0.5000"),
        (-2.015, 5, "0.9500"),
    ],
)
def test_tails_of_the_printed_table(t: float, freedom: int, printed: str) -> None:
    """Abramowitz & Stegun, table 26.10."""
    assert f"{t_tail(t, freedom):.4f}" == printed


def test_what_cannot_be_tested_proves_nothing() -> None:
    assert t_tail(math.nan, 5) == t_tail(3.0, 0) == 1.0
    assert t_tail(math.inf, 5) == 0.0


@given(st.integers(1, 60), st.floats(0.0, 5.0))
def test_tails_fall_and_are_symmetric(freedom: int, t: float) -> None:
    assert 0 <= t_tail(t + 0.1, freedom) <= t_tail(t, freedom) <= 0.5
    assert t_tail(-t, freedom) == 1 - t_tail(t, freedom) or not t


@pytest.mark.parametrize(
    ("chance", "freedom", "printed"),
    [(0.025, 1, "12.706"), (0.05, 5, "2.015"), (0.005, 30, "2.750"), (0.0005, 2, "31.599")],
)
def test_points_of_the_printed_table(chance: float, freedom: int, printed: str) -> None:
    assert f"{t_quantile(chance, freedom):.3f}" == printed


def test_holm_of_his_example() -> None:
    found = holm([0.01, 0.02, 0.015, 0.03, 0.9])
    assert [f"{each:.2f}" for each in found] == ["0.05", "0.06", "0.06", "0.06", "0.90"]
    assert holm([]) == []


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_an_adjusted_probability_is_no_smaller_and_keeps_the_order(tails: list[float]) -> None:
    found = holm(tails)
    assert all(0 <= each <= new <= 1 for each, new in zip(tails, found, strict=True))
    assert min(found) == min(1.0, len(tails) * min(tails))


def shares(*texts: tuple[float, float]) -> RatioEstimate:
    return RatioEstimate.of(
        sum((ratio_sums(torch.tensor(x), torch.tensor(y)) for x, y in texts), torch.zeros(6))
    )


def test_a_share_is_pooled_and_texts_without_it_do_not_count() -> None:
    share = shares((1.0, 4.0), (3.0, 4.0), (5.0, 0.0))
    assert (share.texts, share.value) == (2, 0.5)
    assert math.isnan(shares().value)


def test_the_rest_of_a_share_is_the_share_of_the_rest() -> None:
    share = shares((1.0, 4.0), (3.0, 4.0), (4.0, 8.0))
    rest = shares((3.0, 4.0), (1.0, 4.0), (4.0, 8.0))
    assert share.rest == rest


def test_students_test_by_hand() -> None:
    """d = 1, 2, 3 against 0: t = 2 / (1 / √3) = 3.4641 on 2 degrees; the tail is 0.0371."""
    share = shares((1.0, 10.0), (2.0, 10.0), (3.0, 10.0))
    assert f"{t_tail(2 * math.sqrt(3), 2):.4f}" == "0.0371"
    assert share.tail(0.0) == 0.5**3, "three texts that agree happen one time in eight"
    many = shares(*[(1.0, 10.0), (2.0, 10.0), (3.0, 10.0)] * 4)
    t = 2 / math.sqrt((8 / 11) / 12)
    assert f"{many.tail(0.0):.3e}" == f"{t_tail(t, 11):.3e}" or many.tail(0.0) == 0.5**12
    assert many.tail(0.3) == 1 - many.tail(0.1)


def test_few_texts_or_none_prove_nothing() -> None:
    assert shares((1.0, 1.0)).tail(0.5) == 1.0
    assert tail(0, 0.0, 0.0) == 1.0
    assert tail(4, 4.0, 4.0) == 0.5**4
    assert tail(4, -4.0, 4.0) == 1.0
