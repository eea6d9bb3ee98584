"""Every argument of every position: of a wrong type, too large, or valid for no call."""

import inspect
import sys

import jaxtyping
import pytest
import torch

import headwise as hw
from headwise.errors import BadType, BadValue, HeadwiseError
from headwise.positions import POSITIONS, Frequencies
from headwise.shapes import LARGEST
from headwise.verify.oracle.tolerance import accept

FITTING = {
    "ALiBi": {"num_heads": 2},
    "Learned": {"max_positions": 3, "embed_dim": 4},
    "NoPosition": {},
    "Rotary": {
        "head_dim": 4,
        "pairs": "halves",
        "rotary_dim": 2,
        "sections": [1],
        "interleaved": False,
        "base": 100.0,
        "frequencies": None,
    },
    "Shaw": {"max_distance": 1, "head_dim": 4, "value_dim": 4},
    "Sinusoidal": {"embed_dim": 4, "base": 100.0},
    "T5Bias": {"num_heads": 2, "num_buckets": 8, "max_distance": 9, "bidirectional": True},
    "TransformerXL": {"num_heads": 2, "head_dim": 4, "embed_dim": 4},
}
"""Arguments that each position takes, one at a time put in another's place below."""

ARGUMENTS = [
    pytest.param(position, argument, id=f"{position.__name__}-{argument}")
    for position in POSITIONS
    for argument in FITTING[position.__name__]
]


@pytest.fixture(autouse=True)
def doors_unguarded(monkeypatch):
    """The type checker that tests run under would answer in the place of the message."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def made(position, argument: str, value: object):
    return position(**FITTING[position.__name__] | {argument: value})


def test_each_argument_of_each_position_has_one_that_fits():
    for position in POSITIONS:
        known = set(inspect.signature(position.__init__).parameters) - {"self", "args", "kwargs"}
        assert known == set(FITTING[position.__name__])
        position(**FITTING[position.__name__])


@pytest.mark.parametrize("value", ["a", object(), [2], torch.ones(2), 2.5, True, "no", 1 + 2j])
@pytest.mark.parametrize(("position", "argument"), ARGUMENTS)
def test_no_other_type_is_taken_in_silence_nor_ends_in_a_bare_error(position, argument, value):
    usual = FITTING[position.__name__][argument]
    if type(value) is type(usual) and argument != "pairs":
        pytest.skip("fits")
    kind = BadValue if argument == "pairs" else BadType
    with pytest.raises(kind):
        made(position, argument, value)


@pytest.mark.parametrize(
    "value", [LARGEST + 1, sys.maxsize, 2**70, 10**400, pytest.param(1 << 16610, id="huge")]
)
@pytest.mark.parametrize(("position", "argument"), ARGUMENTS)
def test_a_number_beyond_the_largest_is_refused_by_name(position, argument, value):
    usual = FITTING[position.__name__][argument]
    if isinstance(usual, bool | str | None) or (isinstance(usual, float) and value < 10**400):
        pytest.skip("takes no such number, or takes it")
    with pytest.raises(BadValue, match=rf"^{position.__name__}: {argument} must be"):
        made(position, argument, value)


@pytest.mark.parametrize("base", [float("inf"), float("nan"), 1, -2.0])
@pytest.mark.parametrize("position", [hw.Rotary, hw.Sinusoidal])
def test_a_base_is_finite_and_above_1(position, base):
    with pytest.raises(
        BadValue, match=rf"^{position.__name__}: base must be above 1 and finite, got"
    ):
        made(position, "base", base)


@pytest.mark.parametrize("offset", [2**70, -(2**70), 2.5, "a", None, True])
@pytest.mark.parametrize("position", [hw.Sinusoidal(4), hw.Learned(3, 4)], ids=repr)
def test_an_offset_that_is_no_place_is_refused(position, offset):
    with pytest.raises(HeadwiseError, match=rf"^{type(position).__name__}: offset must be"):
        position.embed(torch.zeros(1, 2, 4), offset)


@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (-9, 2), (-1, 20)])
def test_a_place_before_the_table_is_not_answered_with_a_longer_table(offset, length):
    with pytest.raises(BadValue, match="use an offset of at least 0") as no:
        hw.Learned(3, 4).embed(torch.zeros(1, length, 4), offset)
    assert "longer" not in str(no.value)
    assert "加长" not in no.value.text.zh


@pytest.mark.parametrize("more", [1, 5])
def test_a_table_as_long_as_the_message_says_is_long_enough(more):
    x = torch.zeros(1, 3 + more, 4)
    with pytest.raises(BadValue, match=rf"use a longer table: Learned\({3 + more}, 4\)"):
        hw.Learned(3, 4).embed(x)
    hw.Learned(3 + more, 4).embed(x)


@pytest.mark.parametrize("places", [2**70, [2**70], "abc", None, [[1], [2, 3]], object(), [None]])
def test_places_that_are_no_numbers_are_refused(places):
    for pair in ((places, [0]), ([0], places)):
        with pytest.raises(HeadwiseError, match=r"^Rotary: (queries|keys) must be numbers"):
            hw.Rotary(4, pairs="halves").at(*pair)


EMBED, HEADS, DIM = 12, 3, 4
FITS = [
    hw.NoPosition(),
    hw.ALiBi(HEADS),
    hw.Learned(7, EMBED),
    hw.Rotary(DIM, pairs="halves"),
    hw.Shaw(2, DIM),
    hw.Shaw(2, DIM, value_dim=DIM),
    hw.Sinusoidal(EMBED),
    hw.T5Bias(HEADS),
    hw.TransformerXL(HEADS, DIM),
]
MISFITS = [
    (hw.ALiBi(HEADS + 1), "H"),
    (hw.Learned(7, EMBED + 1), "E"),
    (hw.Rotary(DIM + 2, pairs="halves"), "D"),
    (hw.Shaw(2, DIM + 1), "D"),
    (hw.Shaw(2, DIM, value_dim=DIM + 1), "Dv"),
    (hw.Sinusoidal(EMBED - 1), "E"),
    (hw.T5Bias(HEADS - 1), "H"),
    (hw.TransformerXL(HEADS - 1, DIM), "H"),
    (hw.TransformerXL(HEADS, DIM + 1), "D"),
]


@pytest.mark.parametrize("position", FITS, ids=repr)
def test_a_module_takes_a_position_of_its_sizes(position):
    x = torch.randn(1, 5, EMBED)
    hw.MultiheadAttention(EMBED, HEADS, position=position, batch_first=True)(x, x, x)


@pytest.mark.parametrize(("position", "letter"), MISFITS, ids=lambda each: repr(each))
def test_a_module_refuses_a_position_that_fits_no_call(position, letter):
    size = position.expected_sizes()[letter]
    name = type(position).__name__
    with pytest.raises(BadValue, match=rf"^position: {name} was created for {letter}={size}"):
        hw.MultiheadAttention(EMBED, HEADS, position=position)


def test_every_position_with_a_size_has_one_that_misfits():
    sized = {type(position) for position in FITS if position.expected_sizes()}
    assert sized == {type(position) for position, _ in MISFITS}


@pytest.mark.parametrize("sizes", [{"kdim": 5}, {"vdim": 5}])
@pytest.mark.parametrize("position", [hw.Sinusoidal(EMBED), hw.Learned(7, EMBED)], ids=repr)
def test_query_key_and_value_of_several_sizes_share_no_position(position, sizes):
    with pytest.raises(BadValue, match="leave it out if query, key and value differ"):
        hw.MultiheadAttention(EMBED, HEADS, position=position, **sizes)


def test_the_size_of_a_head_is_the_one_asked_for():
    hw.MultiheadAttention(EMBED, HEADS, head_dim=7, position=hw.Shaw(1, 7, value_dim=7))
    with pytest.raises(BadValue, match="created for D=4, but the module has D=7"):
        hw.MultiheadAttention(EMBED, HEADS, head_dim=7, position=hw.Shaw(1, 4))


def test_scaled_frequencies_turn_as_scaled_positions_do():
    class Scaled(Frequencies):
        length_scale = 1.5

        def per_pair(self, rotary_dim, device):
            return super().per_pair(rotary_dim, device) / 4

    q, places = torch.randn(1, 2, 5, 8, dtype=torch.float64), torch.arange(5) / 4
    scaled, _ = hw.Rotary(8, pairs="halves", frequencies=Scaled()).content(q, q, None)
    expected, _ = hw.Rotary(8, pairs="halves").at(places, places).content(q, q, None)
    accept(scaled, expected * 1.5, expected * 1.5)
