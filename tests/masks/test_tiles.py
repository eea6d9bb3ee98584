"""The grid of tiles compared with the rule of the mask."""

import pytest
import torch

import headwise as hw
from headwise.masks import Mask, Tile
from headwise.masks.tiles import Tiles
from headwise.shapes import AttentionShape
from tests.examples import BATCH, HEADS, every_mask, identity

CPU = torch.device("cpu")
SIDE = 2


def shape_of(queries: int, keys: int, offset: int | None = None) -> AttentionShape:
    return AttentionShape(
        BATCH, HEADS, queries, keys, keys - queries if offset is None else offset, CPU
    )


def tiles(mask: Mask, place: AttentionShape, side: int = SIDE) -> Tiles:
    return Tiles.of(mask.resolve(place), place, side)


def parts(place: AttentionShape, side: int = SIDE):
    """Row, column, and the slices of every tile."""
    for i in range(0, place.queries, side):
        for j in range(0, place.keys, side):
            yield i // side, j // side, slice(i, i + side), slice(j, j + side)


@pytest.mark.parametrize("mask", every_mask(5, 7), ids=identity)
def test_no_tile_is_empty_with_a_pair_in_it_nor_full_without_one(mask):
    place = shape_of(5, 7)
    grid, dense = tiles(mask, place), mask.dense(place)
    for row, column, q, k in parts(place):
        part, code = dense[..., q, k], grid.kinds[row, column]
        assert code != 0 or not part.any()
        assert code != 2 or part.all()


@pytest.mark.parametrize("sizes", [(11, 13), (13, 11), (13, 13), (1, 7), (7, 1)])
@pytest.mark.parametrize("offset", [None, 0, 3, -2])
@pytest.mark.parametrize(
    "mask",
    [
        hw.full(),
        hw.causal(),
        hw.window(2, 3),
        ~hw.window(2, 3),
        hw.causal() & hw.window(4, 0),
        hw.dilated(2, 1, step=2),
        hw.window(1, 1) | hw.global_tokens([0, 5]),
        hw.fixed(3, 1),
        hw.fixed(1, 1),
        hw.fixed(5, 0),
        hw.fixed(7, 7),
        hw.padding([3, 0]),
    ],
    ids=identity,
)
def test_asking_top_down_says_at_least_what_asking_each_tile_says(mask, sizes, offset):
    place = shape_of(*sizes, offset)
    grid, resolved = tiles(mask, place), mask.resolve(place)
    dense = mask.dense(place)
    for row, column, q, k in parts(place):
        first, last = q.start + place.offset, min(q.stop, place.queries) + place.offset
        kind = resolved.tile(range(first, last), range(k.start, min(k.stop, place.keys)))
        said = list(Tile)[int(grid.kinds[row, column])]
        part = dense[..., q, k]
        exact = Tile.FULL if part.all() else Tile.MIXED if part.any() else Tile.EMPTY
        assert said in (kind, exact)
        assert said is kind or kind is Tile.MIXED


@pytest.mark.parametrize("mask", every_mask(5, 7), ids=identity)
@pytest.mark.parametrize("side", [1, 2, 3, 128])
def test_what_queries_and_keys_see_is_counted_right(mask, side):
    place = shape_of(5, 7)
    dense = mask.dense(place).expand(BATCH, HEADS, 5, 7)
    by_query, by_key = tiles(mask, place, side).seen()
    assert torch.equal(by_query.expand(BATCH, HEADS, 5), dense.sum(-1))
    assert torch.equal(by_key.expand(BATCH, HEADS, 7), dense.sum(-2))


def test_pairs_by_kind_are_all_the_pairs():
    place = shape_of(11, 13)
    grid = tiles(hw.causal() & hw.window(3, 0), place)
    dense = (hw.causal() & hw.window(3, 0)).dense(place)[0, 0]
    assert sum(grid.pairs(kind) for kind in Tile) == 11 * 13
    assert sum(grid.counts().values()) == 6 * 7
    assert grid.pairs(Tile.FULL) <= int(dense.sum()) <= 11 * 13 - grid.pairs(Tile.EMPTY)


@pytest.mark.parametrize("sizes", [(0, 7), (5, 0), (0, 0)])
@pytest.mark.parametrize("mask", [hw.causal(), hw.padding([0, 0])], ids=identity)
def test_empty_sizes_have_no_tiles(mask, sizes):
    grid = tiles(mask, shape_of(*sizes, 0))
    assert not any(grid.counts().values())
    by_query, by_key = grid.seen()
    assert (by_query.shape[-1], by_key.shape[-1]) == sizes
    assert not by_query.any()


class Counted(Mask):
    """A mask that counts how often it is asked."""

    def __init__(self, inner: Mask, by_distance: bool) -> None:
        self.inner, self.alike, self.asked = inner, by_distance, 0

    def rule(self, b, h, q, k):
        return self.inner.rule(b, h, q, k)

    def tile(self, q, k):
        self.asked += 1
        return self.inner.tile(q, k)

    @property
    def name(self) -> str:
        return "counted()"

    @property
    def by_distance(self) -> bool:
        return self.alike


@pytest.mark.parametrize("by_distance", [False, True])
@pytest.mark.parametrize("mask", [hw.causal(), hw.window(2, 2), hw.full()], ids=identity)
def test_what_is_asked_grows_with_the_edges_not_with_the_square(mask, by_distance):
    asked = []
    for length in (256, 512):
        counted = Counted(mask, by_distance)
        Tiles.of(counted, shape_of(length, length))
        grid = Tiles.of(counted, shape_of(length, length), SIDE)
        assert torch.equal(grid.kinds, Tiles.of(mask, shape_of(length, length), SIDE).kinds)
        asked.append(counted.asked)
    assert asked[1] < 3 * asked[0] < (512 // SIDE) ** 2


def test_a_fixed_pattern_is_asked_a_few_times_for_each_column(monkeypatch):
    asked, kind = [], hw.fixed(128, 8)
    answer = type(kind).tile

    def counted(mask, q, k):
        asked.append(q)
        return answer(mask, q, k)

    monkeypatch.setattr(type(kind), "tile", counted)
    Tiles.of(kind, AttentionShape(1, 1, 65537, 65537, 0, CPU))
    assert len(asked) <= 3 * 513
