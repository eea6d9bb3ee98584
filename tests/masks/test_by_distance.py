"""`by_distance` of a mask agrees with its rule."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from headwise.masks import Mask
from headwise.shapes import AttentionShape
from tests.examples import every_mask, identity
from tests.masks.test_masks import masks, rectangles, shape_of

LENGTH = 13


def pairs(mask: Mask) -> torch.Tensor:
    return mask.dense(AttentionShape(2, 6, 5, 7, 2, torch.device("cpu"))).expand(2, 6, 5, 7)


@pytest.mark.parametrize("mask", every_mask(), ids=identity)
def test_a_mask_that_says_so_is_constant_along_every_diagonal(mask):
    if not mask.by_distance:
        return
    allowed = pairs(mask)
    assert torch.equal(allowed[..., 1:, 1:], allowed[..., :-1, :-1])
    assert torch.equal(allowed, allowed[:1, :1].expand_as(allowed))


@pytest.mark.parametrize(
    "mask",
    [
        hw.full(),
        hw.causal(),
        hw.window(2, 1),
        hw.dilated(2, 1, step=2),
        hw.strided(3),
        ~hw.causal() | hw.window(1, 0),
    ],
    ids=identity,
)
def test_bands_say_so(mask):
    assert mask.by_distance


@pytest.mark.parametrize(
    "mask",
    [
        hw.padding([3, 5]),
        hw.causal() & hw.padding([3, 5]),
        hw.window(1, 1) | hw.global_tokens([0]),
        ~hw.documents([3, 4]),
        hw.fixed(3, 1),
        hw.causal() & hw.from_tensor(torch.randn(5, 7), "q k"),
    ],
    ids=identity,
)
def test_what_also_looks_at_the_place_does_not(mask):
    assert not mask.by_distance


@given(left=st.integers(0, LENGTH), right=st.integers(0, LENGTH), step=st.integers(1, 5))
def test_the_rule_of_a_band_at_any_place_is_its_rule_at_the_distance(left, right, step):
    mask = (hw.window(left, right) | hw.dilated(right, left, step=step)) & ~hw.causal()
    q, k = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    zero = torch.zeros((), dtype=torch.long)
    assert mask.by_distance
    assert torch.equal(mask.rule(zero, zero, q, k), mask.rule(zero, zero, q - k, zero))


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (7, 5)])
@given(data=st.data())
def test_a_mask_within_a_rectangle_has_the_same_rule_there(queries, keys, data):
    place = shape_of(queries, keys)
    mask = data.draw(masks(queries, keys)).resolve(place)
    q, k = data.draw(rectangles(queries, keys, place.offset))
    rows = slice(q.start - place.offset, q.stop - place.offset)
    part = (..., rows, slice(k.start, k.stop))
    simpler = mask.restrict(q, k).dense(place).expand(2, 6, -1, -1)
    assert torch.equal(simpler[part], mask.dense(place).expand(2, 6, -1, -1)[part])


def test_what_decides_nothing_within_a_rectangle_is_left_out():
    near = hw.causal() & hw.documents(torch.arange(12) // 6)
    assert near.restrict(range(6), range(6)) == hw.causal()
    assert (~near).restrict(range(6), range(6)) == ~hw.causal()
    either = hw.causal() | hw.window(1, 3)
    assert either.restrict(range(6, 9), range(2)) == hw.causal()
    assert either.restrict(range(2), range(3, 5)) == hw.window(1, 3)
    assert near.restrict(range(3, 9), range(9)).name == near.name
