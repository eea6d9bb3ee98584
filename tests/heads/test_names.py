"""The notation for heads."""

import pytest

from headwise.errors import BadType, BadValue
from headwise.heads.names import Head, Layer, by_layer, heads_of, none_such, parse_heads


@pytest.mark.parametrize("word", ["L0H2", "L11H107", "encoder.L3H1", "cross.L0H0"])
def test_a_name_is_read_as_it_is_written(word: str) -> None:
    assert str(Head.parse(word)) == word


def test_a_list_keeps_its_order_and_names_each_once() -> None:
    heads = parse_heads(" l1h8, L0H2,L1H8")
    assert heads == (Head(Layer("", 1), 8), Head(Layer("", 0), 2))


@pytest.mark.parametrize(
    "words", ["", "L0", "H2", "0.2", "L-1H2", "L0H2;L1H8", "L0H2,", "L0H٢x", "L0H٢"]
)
def test_what_is_no_head_is_refused(words: str) -> None:
    with pytest.raises(BadValue, match=r"heads: expected names such as L0H2 .* got"):
        parse_heads(words)


def test_heads_by_layer_are_in_order() -> None:
    heads = parse_heads("L1H8,cross.L0H1,L0H2,L1H3")
    found = {str(layer): [head.number for head in few] for layer, few in by_layer(heads).items()}
    assert list(found.items()) == [("L0", [2]), ("L1", [3, 8]), ("cross.L0", [1])]


@pytest.mark.parametrize("wrong", [None, 3, b"L0H2", 1.5])
def test_what_is_no_name_is_refused(wrong: object) -> None:
    for read in (Head.parse, parse_heads, heads_of):
        with pytest.raises(BadType, match=r"heads: expected names such as .* got"):
            read(wrong)  # type: ignore[arg-type]


def test_heads_and_names_of_heads_are_heads() -> None:
    low, high = parse_heads("L0H2,L1H8")
    assert heads_of("L1H8,L0H2") == (high, low)
    assert heads_of([high, "L0H2", "l1h8"]) == (high, low)
    assert heads_of(low) == (low,)
    assert heads_of(()) == ()


def test_a_head_that_is_not_there_is_told_those_that_are() -> None:
    counts = {Layer("", 1): 4, Layer("", 0): 4, Layer("cross", 3): 2}
    there = "there are L0H0 … L1H3, cross.L3H0 … cross.L3H1, counted from 0"
    assert str(none_such(Head.parse("L0H4"), counts)) == f"heads: L0H4 does not exist; {there}"
