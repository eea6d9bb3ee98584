"""The boundaries of a pattern, and the few rectangles that contain it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from tests.examples import every_mask, identity
from tests.masks.test_masks import masks, shape_of


@given(data=st.data())
def test_nothing_is_allowed_outside_the_spots_and_no_pair_is_in_two(data):
    place = shape_of(5, 7)
    mask = data.draw(masks(5, 7)).resolve(place)
    spots = mask.allowed_blocks()
    if spots is None:
        return
    times = torch.zeros(5, 7)
    for q, k in spots:
        rows = slice(max(q.start - place.offset, 0), max(q.stop - place.offset, 0))
        times[rows, k.start : k.stop] += 1
    assert times.max() <= 1
    assert not mask.dense(place).any(0).any(0)[times == 0].any()


@pytest.mark.parametrize("mask", every_mask(), ids=identity)
def test_seams_are_positions(mask):
    seams = mask.resolve(shape_of(5, 7)).tile_boundaries(7)
    assert all(0 < seam < 7 for seam in seams)
    assert (~hw.causal()).tile_boundaries(7) == frozenset()


def test_documents_turn_where_one_ends_and_blocks_at_their_multiples():
    parts = hw.documents([3, 4, 5])
    assert parts.tile_boundaries(12) == (~parts & hw.causal()).tile_boundaries(12) == {3, 7}
    assert parts.tile_boundaries(7) == {3}
    each = hw.documents(torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]]))
    assert each.tile_boundaries(4) == {1, 2}
    assert hw.block_sparse(torch.ones(2, 2).bool(), 3).tile_boundaries(7) == {3, 6}
    assert (parts | hw.block_sparse(torch.ones(2, 2).bool(), 5)).tile_boundaries(12) == {
        3,
        5,
        7,
        10,
    }


def test_spots_are_the_chosen_blocks_of_all_heads():
    layout = torch.zeros(2, 3, 3, dtype=torch.bool)
    layout[0, 0, 1] = layout[1, 2, 2] = True
    mask = hw.block_sparse(layout, 4)
    assert mask.allowed_blocks() == [(range(4), range(4, 8)), (range(8, 12), range(8, 12))]
    assert (hw.causal() & mask).allowed_blocks() == mask.allowed_blocks()
    assert (hw.causal() | mask).allowed_blocks() is None
