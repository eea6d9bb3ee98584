"""The parts of a mask contain each allowed pair once, in the shape that is fastest to compute."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headwise as hw
from headwise.call import Call
from headwise.engines.tiled.decompose import disjuncts, parts
from headwise.engines.tiled.parts import Band, IndexedRows, Part, StridedRows
from headwise.engines.tiled.problem import Problem
from headwise.engines.tiled.scores import allowed
from headwise.engines.tiled.tiles import stripes
from headwise.errors import HeadwiseError
from headwise.masks import Mask, every
from tests.examples import BATCH, HEADS, every_mask, identity

SIDES = [16, 32]


def work_of(mask: Mask, queries: int, keys: int, offset: int | None = None) -> Problem:
    q, k = torch.zeros(BATCH, HEADS, queries, 1), torch.zeros(BATCH, 1, keys, 1)
    call = Call.of(q, k, k, mask=mask, offset=offset)
    return Problem(q, k, k, q, call.mask, call.position, call.scale, call.shape)


def counted(problem: Problem, plan: list[Part]) -> torch.Tensor:
    """How often each pair is computed, (B, H, Lq, Lk)."""
    shape = problem.shape
    times = torch.zeros(shape.batch, shape.heads, shape.queries, shape.keys)
    for part in plan:
        q, k = part.queries.numbers(q_device := shape.device), part.keys.numbers(q_device)
        may = allowed(problem, part)
        sizes = (shape.batch, shape.heads, part.queries.count, part.queries.size, part.keys.size)
        may = torch.ones(sizes, dtype=torch.bool) if may is None else may.expand(sizes)
        for n in range(part.queries.count):
            rows, columns = q[n][:, None], k[n].clamp(min=0)[None]
            times.index_put_(
                (
                    torch.arange(shape.batch)[:, None, None, None],
                    torch.arange(shape.heads)[None, :, None, None],
                    rows.expand(may.shape[-2:])[None, None],
                    columns.expand(may.shape[-2:])[None, None],
                ),
                may[:, :, n].float(),
                accumulate=True,
            )
    return times


def keys_values(plan: list[Part], layer: int) -> list[int]:
    chosen = (part for part in plan if part.layer == layer)
    return [row for part in chosen for row in part.queries.numbers(torch.device("cpu")).flatten()]


def holds(problem: Problem, side: int) -> None:
    """Each allowed pair once, no other, and no query twice in a layer."""
    plan = parts(problem.mask, problem.shape, side)
    expected = problem.mask.dense(problem.shape).expand(BATCH, HEADS, -1, -1)
    assert torch.equal(counted(problem, plan), expected.float())
    for layer in {part.layer for part in plan}:
        rows = [int(row) for row in keys_values(plan, layer)]
        assert len(rows) == len(set(rows))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("queries", "keys"), [(67, 67), (37, 131), (131, 37)])
@pytest.mark.parametrize("number", range(len(every_mask())))
def test_each_allowed_pair_is_computed_exactly_once(number, queries, keys, side):
    holds(work_of(every_mask(queries, keys)[number], queries, keys), side)


@st.composite
def wide_masks(draw, queries: int, keys: int) -> Mask:
    leaves = [
        hw.causal(),
        hw.window(draw(st.integers(0, 90)), draw(st.integers(0, 90))),
        hw.dilated(draw(st.integers(0, 5)), draw(st.integers(0, 5)), step=draw(st.integers(1, 9))),
        every(draw(st.integers(1, 9))),
        hw.padding([draw(st.integers(0, keys)), draw(st.integers(0, keys))]),
        hw.documents(torch.arange(keys) // draw(st.integers(1, 40))),
        hw.global_tokens([draw(st.integers(0, keys - 1)), draw(st.integers(0, keys + 3))]),
        hw.global_tokens(torch.rand(BATCH, keys) > 0.9, symmetric=draw(st.booleans())),
        hw.random_blocks(draw(st.integers(1, 20)), 1, seed=draw(st.integers(0, 99))),
    ]
    tree = st.recursive(
        st.sampled_from(leaves),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
            inner.map(lambda mask: ~mask),
        ),
        max_leaves=5,
    )
    return draw(tree)


@settings(max_examples=100)
@given(data=st.data())
def test_any_composition_at_any_size_and_offset_is_taken_apart_rightly(data):
    queries, keys = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 80))
    offset = data.draw(st.one_of(st.none(), st.integers(-30, 60)))
    mask = data.draw(wide_masks(queries, keys))
    holds(work_of(mask, queries, keys, offset), data.draw(st.sampled_from([8, 16])))


@settings(max_examples=150)
@given(data=st.data())
def test_any_set_of_distances_is_taken_apart_rightly(data):
    """Solid runs, lone distances between them and beside them, in every order."""
    size = data.draw(st.integers(60, 140), label="size")
    near = data.draw(st.lists(windows(), min_size=1, max_size=3), label="in")
    far = data.draw(st.lists(windows(), max_size=2), label="out")
    mask = near[0]
    for other in near[1:]:
        mask = mask | other
    for other in far:
        mask = mask & ~other
    holds(work_of(mask, size, size, data.draw(st.integers(-9, 9), label="offset")), 16)


@st.composite
def windows(draw):
    """A window, dilated or not."""
    left, right, step = draw(st.integers(0, 20)), draw(st.integers(0, 20)), draw(st.integers(1, 2))
    return hw.window(left, right) if step == 1 else hw.dilated(left // 4, right // 4, step=step)


@pytest.mark.parametrize(
    "mask",
    [
        hw.window(20, 20) & ~hw.dilated(3, 3, step=2),
        hw.window(20, 20) & ~hw.dilated(5, 0, step=2),
        (hw.window(20, 20) & ~hw.window(8, 8)) | hw.dilated(3, 3, step=2),
        hw.dilated(3, 3, step=2) | (hw.window(30, 0) & ~hw.window(11, 11)),
    ],
    ids=identity,
)
def test_a_comb_between_two_solid_runs_is_computed_once(mask):
    """The runs may be one band, which then must not have the comb's teeth again."""
    holds(work_of(mask, 131, 131), 16)


@pytest.mark.parametrize("mask", every_mask(67, 67), ids=identity)
def test_alternatives_are_the_mask(mask):
    place = work_of(mask, 67, 67)
    union = torch.zeros(BATCH, HEADS, 67, 67, dtype=torch.bool)
    for each in disjuncts(place.mask):
        union |= each.dense(place.shape)
    assert torch.equal(union, place.mask.dense(place.shape).expand_as(union))


def views(plan: list[Part]) -> list[Part]:
    return [part for part in plan if isinstance(part.keys, StridedRows) and part.keys.count > 1]


def test_a_window_is_one_batch_of_overlapping_views_and_its_edges():
    plan = parts(hw.window(20, 10), work_of(hw.full(), 521, 521).shape, 32)
    (inside,) = views(plan)
    assert (inside.queries.size, inside.keys.size) == (32, 32 + 20 + 10)
    assert inside.keys.jump == inside.queries.jump == 32
    assert inside.mask is None
    assert inside.band is not None
    assert inside.queries.count >= 521 // 32 - 2
    assert all(part.layer == 0 and part.mask is None for part in plan)


def test_a_dilated_window_is_a_plain_one_in_each_class_of_rows():
    plan = parts(hw.dilated(8, 8, step=3), work_of(hw.full(), 521, 521).shape, 32)
    assert {part.queries.step for part in plan} == {3}
    dense = work_of(hw.dilated(8, 8, step=3), 521, 521)
    pairs = dense.mask.dense(dense.shape).sum()
    assert sum(part.pairs for part in plan) < 4 * pairs


def test_a_strided_pattern_is_a_band_and_a_comb():
    plan = parts(hw.strided(11), work_of(hw.full(), 257, 257).shape, 32)
    assert {part.queries.step for part in plan} == {1, 11}
    assert {part.layer for part in plan} == {0, 1}


def test_padding_asks_pair_by_pair_only_where_a_block_is_cut():
    problem = work_of(hw.window(20, 10) & hw.padding([521, 300]), 521, 521)
    plan = parts(problem.mask, problem.shape, 32)
    with_mask = [part for part in plan if part.mask is not None]
    assert views(plan)
    assert any(part.mask is None for part in views(plan))
    assert 0 < sum(p.pairs for p in with_mask) < sum(p.pairs for p in plan)
    short = work_of(hw.window(20, 10) & hw.padding([200, 150]), 521, 521)
    reached = max(
        int(p.queries.numbers(problem.shape.device).max())
        for p in parts(short.mask, short.shape, 32)
    )
    assert reached < 300  # nobody asks about queries that see padding only


def test_global_tokens_are_columns_and_rows_beside_the_band():
    problem = work_of(hw.window(20, 20) | hw.global_tokens([0, 200, 500]), 521, 521)
    plan = parts(problem.mask, problem.shape, 32)
    columns = [p for p in plan if isinstance(p.keys, IndexedRows)]
    rows = [p for p in plan if isinstance(p.queries, IndexedRows)]
    assert [p.keys.index.tolist() for p in columns] == [[[0, 200, 500]]]
    assert [p.queries.index.tolist() for p in rows] == [[[0, 200, 500]]]
    assert sorted({p.layer for p in plan}) == [0, 1, 2]


def test_documents_are_rectangles_and_random_blocks_are_gathered():
    problem = work_of(hw.documents([130, 260, 131]), 521, 521)
    plan = parts(problem.mask, problem.shape, 32)
    assert not any(isinstance(p.keys, IndexedRows) for p in plan)
    assert any(p.queries.size > 64 and p.mask is None for p in plan)
    problem = work_of(hw.random_blocks(32, 2, seed=1), 521, 521)
    plan = parts(problem.mask, problem.shape, 32)
    gathered = [p for p in plan if isinstance(p.keys, IndexedRows)]
    assert any(p.queries.count > 1 and p.mask is None for p in gathered)


def test_stripes_that_move_along_are_views_too():
    layout = torch.eye(16, dtype=torch.bool) | torch.eye(16, dtype=torch.bool).roll(1, 1)
    layout[-1, 0] = False
    problem = work_of(hw.block_sparse(layout, 32), 512, 512)
    plan = parts(problem.mask, problem.shape, 32)
    assert [p.keys.size for p in views(plan)] == [64]
    assert not any(isinstance(p.keys, IndexedRows) for p in plan)


@pytest.mark.parametrize("length", [131_072, 262_144])
def test_the_plan_of_a_long_window_is_short_and_its_work_follows_the_pattern(length):
    """Case 28: neither L² memory nor L² time: a handful of parts, whose pairs are those needed."""
    shape = hw.Mask.__module__ and work_of(hw.full(), 1, 1).shape
    shape = type(shape)(1, 1, length, length, 0, torch.device("cpu"))
    plan = parts(hw.window(256, 256), shape, 64)
    assert len(plan) < 16
    assert sum(part.pairs for part in plan) < 1.2 * length * 513


def test_tiles_ask_as_often_as_the_pattern_has_edges():
    class Counted(type(hw.documents([1]))):
        calls = 0

        def tile(self, q, k):
            type(self).calls += 1
            return super().tile(q, k)

    length, side = 4096, 64
    mask = Counted(torch.arange(length)[None] // 512)
    shape = type(work_of(hw.full(), 1, 1).shape)(1, 1, length, length, 0, torch.device("cpu"))
    found = list(stripes(mask, shape, side))
    assert len(found) == length // side
    assert Counted.calls < 4 * length // side


def test_a_part_in_chunks_is_the_part():
    band = Band(torch.rand(40) > 0.3, 20)
    whole = Part(StridedRows(3, 5, 8, 8), StridedRows(0, 5, 31, 8), band=band)
    dense = band.dense(8, 31)
    for most in (1, 50, 8 * 31, 3 * 8 * 31, 10**6):
        seen = torch.zeros(5, 8, dtype=torch.long)
        for chunk in whole.chunks(most):
            numbers = chunk.queries.numbers(torch.device("cpu")) - 3
            seen.view(-1)[numbers] += 1
            first = int(numbers[0, 0]) % 8
            assert torch.equal(
                chunk.band.dense(chunk.queries.size, 31), dense[first : first + chunk.queries.size]
            )
        assert torch.equal(seen, torch.ones_like(seen))


@pytest.mark.parametrize(
    "rows", [StridedRows(2, 4, 7, 3), StridedRows(1, 3, 5, 4, 2), StridedRows(0, 4, 3, 3)]
)
def test_adding_into_overlapping_blocks_adds_each_row_as_often_as_it_is_named(rows):
    blocks = torch.randn(2, 3, rows.count, rows.size, 5, dtype=torch.float64)
    got, expected = torch.zeros(2, 2, 3, 23, 5, dtype=torch.float64)
    rows.add(got, blocks)
    IndexedRows(rows.numbers(got.device)).add(expected, blocks)
    order = (got - expected).abs().max()
    assert order <= torch.finfo(torch.float64).eps * blocks.abs().max() * rows.size
    assert torch.equal(rows.take(expected), IndexedRows(rows.numbers(got.device)).take(expected))


def test_a_mask_of_the_engine_draws_and_never_guesses():
    from headwise.engines.tiled.decompose import KeyColumns

    mask = KeyColumns(torch.tensor([1, 3]))
    assert mask.draw(2, 4) == "· ■ · ■\n· ■ · ■"
    assert repr(mask) == "columns([1, 3])"
    assert mask.tile(range(2), range(4)).value == "mixed"
    assert issubclass(HeadwiseError, Exception)
