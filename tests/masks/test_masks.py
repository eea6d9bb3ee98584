"""Properties of all masks: their pictures, their algebra, and the correctness of their tiles."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.masks import MASKS, Mask, Tile, appended, every
from headwise.shapes import AttentionShape
from tests.examples import BATCH, HEADS, every_mask, identity

CPU = torch.device("cpu")


def shape_of(queries: int, keys: int, offset: int | None = None) -> AttentionShape:
    return AttentionShape(
        BATCH, HEADS, queries, keys, keys - queries if offset is None else offset, CPU
    )


@st.composite
def masks(draw, queries: int, keys: int) -> Mask:
    """Any mask made of the leaves and & | ~ (biased leaves have no place under | and ~)."""
    leaves = [mask for mask in every_mask(queries, keys) if not mask.biased]
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


@st.composite
def rectangles(draw, queries: int, keys: int, offset: int) -> tuple[range, range]:
    q0, k0 = draw(st.integers(0, queries - 1)), draw(st.integers(0, keys - 1))
    q1, k1 = draw(st.integers(q0 + 1, queries)), draw(st.integers(k0 + 1, keys))
    return range(q0 + offset, q1 + offset), range(k0, k1)


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (7, 5), (5, 5)])
@given(data=st.data())
def test_a_tile_is_never_empty_where_a_pair_may_attend_nor_full_where_one_may_not(
    queries, keys, data
):
    place = shape_of(queries, keys)
    mask = data.draw(masks(queries, keys)).resolve(place)
    q, k = data.draw(rectangles(queries, keys, place.offset))
    part = mask.dense(place)[..., q.start - place.offset : q.stop - place.offset, k.start : k.stop]
    kind = mask.tile(q, k)
    assert kind is not Tile.EMPTY or not part.any()
    assert kind is not Tile.FULL or part.all()


@pytest.mark.parametrize("mask", every_mask(), ids=identity)
@given(data=st.data())
def test_the_tiles_of_each_leaf_are_true(mask, data):
    place = shape_of(5, 7)
    resolved = mask.resolve(place)
    q, k = data.draw(rectangles(5, 7, place.offset))
    part = resolved.dense(place)[..., q.start - 2 : q.stop - 2, k.start : k.stop]
    kind = resolved.tile(q, k)
    assert kind is not Tile.EMPTY or not part.any()
    assert kind is not Tile.FULL or part.all()


@given(data=st.data())
def test_the_algebra_is_that_of_sets(data):
    place = shape_of(5, 7)
    a, b = data.draw(masks(5, 7)), data.draw(masks(5, 7))
    left, right = a.dense(place), b.dense(place)
    assert torch.equal((a & b).dense(place), torch.logical_and(left, right))
    assert torch.equal((a | b).dense(place), torch.logical_or(left, right))
    assert torch.equal((~a).dense(place), ~left)
    assert ~~a == a


def test_masks_without_tensors_are_equal_by_value():
    assert hw.causal() & hw.window(3, 0) == hw.causal() & hw.window(3, 0)
    assert hw.window(3, 0) != hw.window(4, 0)
    assert len({hw.causal(), hw.causal(), hw.full()}) == 2


@pytest.mark.parametrize(
    ("mask", "name"),
    [
        (hw.causal() & hw.window(3, 0), "causal() & window(3, 0)"),
        (~(hw.causal() | hw.full()), "~(causal() | full())"),
        ((hw.causal() | hw.full()) & hw.window(1, 2), "(causal() | full()) & window(1, 2)"),
        (hw.padding([3, 0]), "padding([3, 0])"),
        (hw.from_tensor(torch.ones(2, 3).bool()), "from_tensor(<bool (2, 3)>)"),
        (appended(hw.causal(), 1), "appended(causal(), 1)"),
    ],
)
def test_a_mask_is_shown_as_the_expression_that_makes_it(mask, name):
    assert repr(mask) == name


def test_every_mask_is_in_the_catalogue_and_alphabetical():
    assert [mask.__name__ for mask in MASKS] == sorted(mask.__name__ for mask in MASKS)


def test_window_sees_its_own_key_and_the_counts_it_names():
    """Case 21: 'window 4' is two numbers; here both can be said."""
    allowed = (hw.causal() & hw.window(3, 0)).dense(shape_of(11, 11))[0, 0]
    assert allowed[10].sum() == 4
    assert (hw.causal() & hw.window(4, 0)).dense(shape_of(11, 11))[0, 0, 10].sum() == 5


@pytest.mark.parametrize(
    ("queries", "keys", "counts"), [(1, 8, [8]), (2, 6, [5, 6]), (5, 2, [0, 0, 0, 1, 2])]
)
def test_case_17_causal_is_aligned_lower_right(queries, keys, counts):
    assert hw.causal().dense(shape_of(queries, keys))[0, 0].sum(-1).tolist() == counts


def test_an_offset_moves_the_queries():
    rows = hw.causal().dense(shape_of(2, 6, offset=1))[0, 0].int().tolist()
    assert rows == [[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]


def test_a_tensor_row_belongs_to_a_query_whatever_the_offset():
    pairs = torch.tensor([[True, False, True], [False, True, False]])
    assert torch.equal(hw.from_tensor(pairs, "q k").dense(shape_of(2, 3, offset=7))[0, 0], pairs)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((5, 7), None),
        ((2, 5, 7), None),
        ((6, 5, 7), None),
        ((1, 5, 7), None),
        ((2, 6, 5, 7), None),
        ((1, 6, 5, 7), None),
        ((2, 1, 5, 7), None),
        ((2, 5, 7), "b q k"),
        ((6, 5, 7), "h q k"),
    ],
)
def test_case_11_every_shape_that_can_be_read_is_read_batch_major(shape, layout):
    pairs = torch.rand(shape) > 0.5
    dense = hw.from_tensor(pairs, layout).dense(shape_of(5, 7)).expand(2, 6, 5, 7)
    axes = {2: "q k", 4: "b h q k"}.get(len(shape), "b q k" if shape[0] in (1, 2) else "h q k")
    expected = pairs[None, None] if axes == "q k" else pairs
    expected = expected[:, None] if axes == "b q k" else expected
    expected = expected[None] if axes == "h q k" else expected
    assert torch.equal(dense, expected.expand(2, 6, 5, 7))


def test_a_shape_that_fits_twice_is_refused_with_the_way_out():
    place = AttentionShape(3, 3, 5, 7, 2, CPU)
    with pytest.raises(BadValue, match="can be read as 'b q k' or 'h q k'; say which with"):
        hw.from_tensor(torch.ones(3, 5, 7).bool()).dense(place)
    dense = hw.from_tensor(torch.ones(3, 5, 7).bool(), "h q k").dense(place)
    assert dense.shape == (1, 3, 5, 7)


def test_case_12_a_mask_that_could_be_padding_is_never_read_in_silence():
    place = AttentionShape(5, 2, 5, 7, 2, CPU)
    with pytest.raises(BadValue, match=r"can be \(Lq, Lk\) or the padding \(B, Lk\)"):
        hw.from_tensor(torch.ones(5, 7).bool()).dense(place)
    assert hw.from_tensor(torch.ones(5, 7).bool(), "q k").dense(place).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_cases_5_and_6_the_lowest_number_of_a_dtype_blocks(dtype):
    lowest = torch.zeros(5, 7, dtype=dtype)
    lowest[:, 3] = torch.finfo(dtype).min
    lowest[2] = -torch.inf
    mask = hw.from_tensor(lowest, "q k")
    both = (mask & mask).resolve(shape_of(5, 7))
    allowed = both.dense(shape_of(5, 7))[0, 0]
    assert not allowed[:, 3].any()
    assert not allowed[2].any()
    assert allowed[0].sum() == 6
    assert both.bias(*shape_of(5, 7).indices()).isfinite().all()


def test_a_bfloat16_lowest_blocks_after_a_cast_to_float32():
    values = torch.full((5, 7), torch.finfo(torch.bfloat16).min).float()
    assert not hw.from_tensor(values, "q k").dense(shape_of(5, 7)).any()


def test_a_nan_in_a_float_mask_is_not_taken_for_blocked():
    values = torch.randn(5, 7)
    values[2, 3] = torch.nan
    mask = hw.from_tensor(values, "q k")
    assert mask.dense(shape_of(5, 7)).all()
    q, k, v = (torch.randn(2, HEADS, n, 3) for n in (5, 7, 7))
    output = hw.attend(q, k, v, mask=mask, engine="eager")
    assert output[:, :, 2].isnan().all()
    assert output[:, :, :2].isfinite().all()


def test_biases_add_under_and():
    a, b = torch.randn(5, 7), torch.randn(5, 7)
    mask = (hw.from_tensor(a, "q k") & hw.from_tensor(b, "q k") & hw.causal()).resolve(
        shape_of(5, 7)
    )
    assert torch.equal(mask.bias(*shape_of(5, 7).indices())[0, 0], a + b)


def test_case_9_a_float_mask_of_zeros_and_ones_is_refused():
    with pytest.raises(BadValue, match=r"only 0 and 1; .* pass \.bool\(\)"):
        hw.from_tensor(torch.tril(torch.ones(5, 5)))
    hw.from_tensor(torch.zeros(5, 5))
    hw.from_tensor(torch.tril(torch.ones(5, 5)) * 2)


def pairs_of(mask: Mask, length: int) -> set[tuple[int, int]]:
    rows = mask.dense(AttentionShape(1, 1, length, length, 0, CPU))[0, 0]
    return {(i, j) for i in range(length) for j in range(length) if rows[i, j]}


@pytest.mark.parametrize("length", [1, 7, 13])
def test_sparse_patterns_are_the_sets_of_their_papers(length):
    every_pair = [(i, j) for i in range(length) for j in range(length)]
    strided = {(i, j) for i, j in every_pair if j <= i and (i - j <= 3 or (i - j) % 3 == 0)}
    assert pairs_of(hw.strided(3), length) == strided
    fixed = {(i, j) for i, j in every_pair if j <= i and (j // 5 == i // 5 or j % 5 >= 3)}
    assert pairs_of(hw.fixed(5, 2), length) == fixed
    dilated = {(i, j) for i, j in every_pair if i - j in (6, 3, 0, -3)}
    assert pairs_of(hw.dilated(2, 1, step=3), length) == dilated
    prefix = {(i, j) for i, j in every_pair if j <= i or j < 4}
    assert pairs_of(hw.prefix(4), length) == prefix
    longformer = {(i, j) for i, j in every_pair if abs(i - j) <= 2 or 0 in (i, j)}
    assert pairs_of(hw.window(2, 2) | hw.global_tokens([0]), length) == longformer


def test_packed_documents_do_not_see_each_other():
    ids = [0, 0, 1, 1, 1, 2]
    expected = {(i, j) for i in range(6) for j in range(6) if ids[i] == ids[j]}
    assert pairs_of(hw.documents([2, 3, 1]), 6) == expected
    assert pairs_of(hw.documents(torch.tensor(ids)), 6) == expected


def test_random_blocks_follow_their_seed_and_nothing_else():
    place = shape_of(11, 11)
    first = hw.random_blocks(2, 2, seed=3).dense(place)
    torch.manual_seed(99)
    assert torch.equal(first, hw.random_blocks(2, 2, seed=3).dense(place))
    assert not torch.equal(first, hw.random_blocks(2, 2, seed=4).dense(place))
    tail = hw.random_blocks(2, 2, seed=3).dense(shape_of(3, 11))
    assert torch.equal(tail[..., -3:, :], first[..., -3:, :])
    assert (first[0, 0, 0].sum() == 4) | (first[0, 0, 0, -1] & (first[0, 0, 0].sum() == 3))


def test_each_head_has_its_own_mask():
    masks = [hw.causal(), hw.window(1, 0), hw.full(), hw.causal(), hw.full(), hw.window(0, 0)]
    dense = hw.per_head(masks).dense(shape_of(5, 7))
    for head, mask in enumerate(masks):
        assert torch.equal(dense[0, head], mask.dense(shape_of(5, 7))[0, 0])


def test_drawing():
    assert hw.window(1, 0).draw(3) == "■ · ·\n■ ■ ·\n· ■ ■"
    assert hw.causal().draw(2, 3) == "■ ■ ·\n■ ■ ■"
    with pytest.raises(BadValue, match=r"has 5 queries and 7 keys; use draw\(5, 7\)"):
        hw.from_tensor(torch.ones(5, 7).bool()).draw(3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: hw.window(-1, 0), BadValue, r"left must be >= 0, got -1; use window\(0, 0\)"),
        (lambda: hw.window(0, -2), BadValue, "right must be >= 0, got -2"),
        (lambda: hw.window(1.5, 0), BadType, "left must be an integer, got 1.5"),
        (lambda: hw.window(True, 0), BadType, "left must be an integer, got True"),
        (lambda: hw.padding([-1]), BadValue, "a length must be >= 0, got -1"),
        (lambda: hw.padding("ab"), BadType, "expected a sequence of integer lengths"),
        (lambda: hw.padding([1.0]), BadType, "expected a sequence of integer lengths"),
        (lambda: hw.padding(torch.ones(2, 3)), BadType, r"got torch.float32 \(2, 3\)"),
        (lambda: hw.padding(torch.ones(2, 3, 4).bool()), BadType, r"got torch.bool \(2, 3, 4\)"),
        (lambda: hw.from_tensor([1]), BadType, "expected a tensor, got list"),
        (lambda: hw.from_tensor(torch.ones(2, 2).int()), BadType, "got torch.int32; for 0/1"),
        (lambda: hw.from_tensor(torch.ones(2, 2).bool(), "k q"), BadValue, "unknown 'k q'"),
        (
            lambda: hw.dilated(1, 1, step=0),
            BadValue,
            "step must be >= 1, got 0; 1 gives an ordinary",
        ),
        (lambda: hw.strided(0), BadValue, "stride must be >= 1, got 0"),
        (lambda: every(0), BadValue, "every: step must be >= 1, got 0"),
        (lambda: hw.fixed(0, 0), BadValue, "block must be >= 1, got 0"),
        (
            lambda: hw.fixed(2, 3),
            BadValue,
            "summary must be at most block, got summary 3 and block 2",
        ),
        (lambda: hw.prefix(-1), BadValue, r"prefix: a length must be >= 0, got -1; 0 is causal"),
        (lambda: hw.documents([2, -1]), BadValue, "documents: a length must be >= 0, got -1"),
        (lambda: hw.documents(torch.ones(3)), BadType, r"expected integers \(Lk,\) or"),
        (lambda: hw.documents([2, 3]).dense(shape_of(5, 7)), BadValue, r"made for .* \(1, 5\)"),
        (lambda: hw.global_tokens([-1]), BadValue, "a position must be >= 0, got -1"),
        (lambda: hw.global_tokens(torch.ones(3)), BadType, "expected positions or booleans"),
        (
            lambda: hw.global_tokens(torch.ones(3, 7).bool()).dense(shape_of(5, 7)),
            BadValue,
            r"made for \(B, Lk\) = \(3, 7\), called with \(2, 7\)",
        ),
        (lambda: hw.block_sparse(torch.ones(2, 2), 2), BadType, "got torch.float32; use layout"),
        (lambda: hw.block_sparse(torch.ones(2).bool(), 2), BadValue, r"key blocks\), got \(2,\)"),
        (lambda: hw.block_sparse(torch.ones(2, 2).bool(), 0), BadValue, "block must be >= 1"),
        (
            lambda: hw.block_sparse(torch.ones(3, 2, 2).bool(), 4).dense(shape_of(5, 7)),
            BadValue,
            "the layout has 3 heads, but the call has 6",
        ),
        (lambda: hw.random_blocks(2, 0, seed=1), BadValue, "count must be >= 1, got 0"),
        (lambda: hw.random_blocks(2, 1, seed=-1), BadValue, "seed must be >= 0, got -1"),
        (
            lambda: hw.random_blocks(2, 1, seed=1).rule(*shape_of(5, 7).indices()),
            BadValue,
            "depend on the length of a call",
        ),
        (lambda: hw.per_head([]), BadValue, "one mask for each head, got none"),
        (lambda: hw.per_head([torch.ones(2)]), BadType, "expected masks, got Tensor"),
        (
            lambda: hw.per_head([hw.full()]).dense(shape_of(5, 7)),
            BadValue,
            "for 1 heads, called with 6",
        ),
        (lambda: hw.causal() & torch.ones(2), BadType, "only masks compose with & | ~, got Tensor"),
        (
            lambda: hw.causal() and hw.window(1, 0),
            BadType,
            "compose masks with & | ~, not with and",
        ),
        (lambda: ~hw.from_tensor(torch.randn(2, 2)), BadValue, "no meaning under '~'"),
        (lambda: hw.full() | hw.from_tensor(torch.randn(2, 2)), BadValue, r"under '\|'"),
        (lambda: hw.padding([1, 2, 3]).dense(shape_of(5, 7)), BadValue, "batch of 3, called with"),
        (lambda: hw.padding(torch.ones(2, 5).bool()).dense(shape_of(5, 7)), BadValue, "for 5 keys"),
        (
            lambda: hw.from_tensor(torch.ones(3, 3).bool()).dense(shape_of(5, 7)),
            BadValue,
            "not fit",
        ),
        (
            lambda: hw.from_tensor(torch.ones(5, 7).bool()).rule(*shape_of(5, 7).indices()),
            BadValue,
            "must be resolved",
        ),
    ],
)
def test_bad_input_is_named_with_the_way_out(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert caught.value.text.zh != caught.value.text.en


def test_random_blocks_may_differ_by_head():
    shape = AttentionShape(1, 4, 64, 64, 0, torch.device("cpu"))
    shared, own = (hw.random_blocks(8, 2, seed=3, heads=n).dense(shape) for n in (1, 4))
    assert torch.equal(own[:, 0], shared[:, 0])
    assert len({tuple(head.flatten().tolist()) for head in own[0]}) == 4
    assert bool((own.sum(-1) == 16).all())
    with pytest.raises(BadValue, match="4 heads, but the call has 6"):
        hw.random_blocks(8, 2, seed=3, heads=4).dense(replace(shape, heads=6))
