"""Properties of & | ~ and of the kinds of tiles, for any two lengths and any offset."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.masks import Mask, Tile
from headwise.masks.tiles import Tiles
from headwise.shapes import AttentionShape
from tests.examples import BATCH, HEADS, every_mask

CPU = torch.device("cpu")
LEAVES = {}
"""The masks of each pair of lengths, made once."""


def leaves(queries: int, keys: int) -> list[Mask]:
    if (queries, keys) not in LEAVES:
        made = every_mask(queries, keys)
        LEAVES[queries, keys] = [mask for mask in made if not mask.biased]
    return LEAVES[queries, keys]


@st.composite
def places(draw) -> AttentionShape:
    """Lengths with Lq <, = and > Lk, and offsets from before the first key to behind the last."""
    queries, keys = draw(st.sampled_from([(5, 7), (7, 5), (11, 13), (13, 11), (7, 7), (2, 17)]))
    offset = draw(st.one_of(st.just(keys - queries), st.integers(-queries, keys)))
    return AttentionShape(BATCH, HEADS, queries, keys, offset, CPU)


def trees(place: AttentionShape):
    return st.recursive(
        st.sampled_from(leaves(place.queries, place.keys)),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
            inner.map(lambda mask: ~mask),
        ),
        max_leaves=6,
    )


@given(data=st.data())
def test_and_or_and_not_are_those_of_sets(data):
    place = data.draw(places())
    a, b = data.draw(trees(place)), data.draw(trees(place))
    left, right = a.dense(place), b.dense(place)
    assert torch.equal((a & b).dense(place), torch.logical_and(left, right))
    assert torch.equal((a | b).dense(place), torch.logical_or(left, right))
    assert torch.equal((~a).dense(place), torch.logical_not(left))
    assert torch.equal((~(a & b)).dense(place), (~a | ~b).dense(place))
    assert torch.equal((~(a | b)).dense(place), (~a & ~b).dense(place))


@given(data=st.data())
def test_resolving_a_mask_changes_no_pair(data):
    place = data.draw(places())
    mask = data.draw(trees(place))
    assert torch.equal(mask.resolve(place).dense(place), mask.dense(place))


@given(data=st.data())
def test_a_rectangle_is_never_empty_with_a_pair_in_it_nor_full_without_one(data):
    place = data.draw(places())
    mask = data.draw(trees(place)).resolve(place)
    top, left = (data.draw(st.integers(0, n - 1)) for n in (place.queries, place.keys))
    bottom = data.draw(st.integers(top + 1, place.queries))
    right = data.draw(st.integers(left + 1, place.keys))
    part = mask.dense(place)[..., top:bottom, left:right]
    kind = mask.tile(range(top + place.offset, bottom + place.offset), range(left, right))
    assert kind is not Tile.EMPTY or not part.any()
    assert kind is not Tile.FULL or part.all()


@given(data=st.data(), side=st.sampled_from([1, 2, 3, 5]))
def test_the_grid_is_never_empty_with_a_pair_in_it_nor_full_without_one(data, side):
    place = data.draw(places())
    mask = data.draw(trees(place)).resolve(place)
    grid, dense = Tiles.of(mask, place, side), mask.dense(place)
    for row in range(0, place.queries, side):
        for column in range(0, place.keys, side):
            part = dense[..., row : row + side, column : column + side]
            code = grid.kinds[row // side, column // side]
            assert code != 0 or not part.any()
            assert code != 2 or part.all()
