import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.document import terminal, text_format
from headwise.document.blocks import slices
from headwise.document.text_format import clean, clean_lines
from tests.document.attack import EVIL


@pytest.mark.parametrize("text", EVIL)
def test_cleaned_text_only_draws(text):
    kinds = {unicodedata.category(character) for character in clean(text)}
    assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    clean(text).encode("utf-8")


@given(st.text())
def test_cleaning_twice_is_cleaning_once_and_letters_stay(text):
    assert clean(clean(text)) == clean(text)
    letters = [c for c in text if unicodedata.category(c)[0] == "L"]
    assert all(letter in clean(text) for letter in letters)


def test_joined_emoji_and_chinese_stay_as_they_are():
    assert clean("我爱你 👩‍🚀") == "我爱你 👩‍🚀"


def test_lines_keep_their_indentation():
    assert clean_lines("a\n\tb\x1b") == ["a", "    b␛"]


@pytest.mark.parametrize(
    ("value", "precision", "text"),
    [
        (0.125, 2, "0.12"),
        (-0.0, 3, "0.000"),
        (-4e-9, 4, "0.0000"),
        (1.5, 0, "2"),
        (float("inf"), 1, "inf"),
        (float("nan"), 1, "nan"),
        (-3e20, 2, "-3.00e+20"),
    ],
)
def test_a_number_is_written_at_its_precision(value, precision, text):
    assert text_format.decimal(value, precision) == text


@given(st.integers(0, 50), st.integers(-3, 9))
def test_slices_cover_every_column_once(columns, most):
    parts = list(slices(columns, most))
    assert [j for part in parts for j in part] == list(range(columns))
    assert all(len(part) <= max(most, 1) for part in parts)


def test_pooling_keeps_the_largest_weight_of_each_block():
    nan = float("nan")
    values = [[0.1, 0.9, nan], [0.2, nan, nan], [0.3, 0.4, 0.5]]
    pooled = terminal.pool(values, 2)
    assert (pooled[0][0], pooled[1]) == (0.9, [0.4, 0.5])
    assert math.isnan(pooled[0][1])
