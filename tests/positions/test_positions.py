"""Position encodings compared with the formulas of their papers."""

import copy
import math

import pytest
import torch

import headwise as hw
from headwise.call import Call
from headwise.engines import ENGINES
from headwise.errors import BadType, BadValue
from headwise.positions import POSITIONS, Stage
from headwise.reference import reference
from headwise.shapes import AttentionShape
from headwise.verify.oracle.tolerance import accept
from tests.examples import (
    DIM,
    HEADS,
    VALUE_DIM,
    accept_with_gradients,
    every_position,
    named,
    tensors,
)

PLACES = [(5, 7, None), (7, 5, None), (3, 11, 2), (7, 7, None)]
"""Numbers of queries and keys, and an offset."""


@pytest.mark.parametrize("offset", [0, 3, -2])
@pytest.mark.parametrize("embed_dim", [1, 2, 7, 8])
def test_sinusoidal_is_the_formula_of_the_paper(embed_dim, offset):
    def entry(pos: int, j: int) -> float:
        angle = pos / 10000 ** ((j - j % 2) / embed_dim)
        return math.cos(angle) if j % 2 else math.sin(angle)

    expected = torch.tensor(
        [[entry(offset + i, j) for j in range(embed_dim)] for i in range(5)], dtype=torch.float64
    )
    got = hw.Sinusoidal(embed_dim).embed(torch.zeros(2, 5, embed_dim), offset)
    accept(got, expected.float()[None].expand(2, -1, -1), expected[None].expand(2, -1, -1))


def test_sinusoidal_stays_exact_at_far_positions():
    position = 2**20 + 1
    got = hw.Sinusoidal(6).embed(torch.zeros(1, 1, 6), position)[0, 0]
    exact = torch.tensor([position / 10000 ** (i / 6) for i in (0, 2, 4)], dtype=torch.float64)
    oracle = torch.stack((exact.sin(), exact.cos()), -1).flatten()
    accept(got, oracle.float(), oracle)


def test_learned_adds_rows_of_its_table_and_learns():
    position = hw.Learned(11, 3)
    x = torch.randn(2, 5, 3)
    out = position(x, offset=4)
    assert torch.equal(out, x + position.table[4:9])
    out.sum().backward()
    assert position.table.grad.sum(1).tolist() == [0] * 4 + [6] * 5 + [0] * 2


def test_no_position_leaves_the_input_alone():
    x = torch.randn(2, 5, 3)
    assert hw.NoPosition()(x) is x


@pytest.mark.parametrize("make", [lambda: hw.Sinusoidal(3), lambda: hw.Learned(7, 3)])
def test_the_callers_tensor_is_never_written_to(make):
    x = torch.randn(2, 5, 3)
    before = x.clone()
    make()(x)
    assert torch.equal(x, before)


def test_every_position_is_in_the_catalogue_and_alphabetical():
    assert [p.__name__ for p in POSITIONS] == sorted(p.__name__ for p in POSITIONS)


def biases(position, queries, keys, offset):
    """What a position adds, beside where each query and key stands."""
    q = torch.randn(2, HEADS, queries, DIM, dtype=torch.float64)
    shape = AttentionShape(
        2, HEADS, queries, keys, keys - queries if offset is None else offset, q.device
    )
    query, key = (index.flatten() for index in shape.indices()[2:])
    return q, query.tolist(), key.tolist(), position.bias(q, query, key, 0.3)


@pytest.mark.parametrize(("queries", "keys", "offset"), PLACES)
def test_case_31_transformer_xl_is_its_formula_for_every_pair(queries, keys, offset):
    position = hw.TransformerXL(HEADS, DIM, embed_dim=6).double()
    q, query, key, got = biases(position, queries, keys, offset)
    expected = torch.empty_like(got)
    for i, at in enumerate(query):
        for j, to in enumerate(key):
            waves = [(at - to) / 10000 ** (p / 6) for p in (0, 2, 4)]
            r = torch.tensor(
                [f(w) for w in waves for f in (math.sin, math.cos)], dtype=torch.float64
            )
            rows = position.projection @ r  # (H, D)
            expected[:, :, i, j] = ((q[:, :, i] + position.v) * rows).sum(-1) * 0.3
    accept(got, expected, expected)


def test_transformer_xl_scores_content_with_u():
    position = hw.TransformerXL(HEADS, DIM, embed_dim=6).double()
    with torch.no_grad():
        position.projection.zero_()
    q, k, v = tensors(groups=HEADS)
    got = reference(Call.of(q, k, v, position=position)).dots
    expected = torch.einsum("bhid,bhjd->bhij", q + position.u[:, None], k)
    accept(got, expected, expected)


@pytest.mark.parametrize(("queries", "keys", "offset"), PLACES)
@pytest.mark.parametrize("far", [0, 2, 10])
def test_case_32_shaw_is_its_formula_clipped(far, queries, keys, offset):
    position = hw.Shaw(far, DIM, value_dim=VALUE_DIM).double()
    q, query, key, got = biases(position, queries, keys, offset)
    weights = torch.rand(2, HEADS, queries, keys, dtype=torch.float64)
    added = position.values(weights, torch.tensor(query), torch.tensor(key))
    expected, sums = torch.empty_like(got), torch.zeros_like(added)
    for i, at in enumerate(query):
        for j, to in enumerate(key):
            row = min(max(to - at, -far), far) + far
            expected[:, :, i, j] = q[:, :, i] @ position.table[row] * 0.3
            sums[:, :, i] += weights[:, :, i, j, None] * position.value_table[row]
    accept(got, expected, expected)
    accept(added, sums, sums)


def test_case_34_t5_buckets_are_the_published_ones():
    got = hw.T5Bias(1).bucket(torch.arange(-10, 11)).tolist()
    assert got == [8, 8, 8, 7, 6, 5, 4, 3, 2, 1, 0, 17, 18, 19, 20, 21, 22, 23, 24, 24, 24]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (8, 20), (17, 40)])
def test_t5_buckets_are_those_of_transformers(bidirectional, buckets, far):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    relative = torch.arange(-300, 301)
    theirs = t5.T5Attention._relative_position_bucket(relative, bidirectional, buckets, far)
    ours = hw.T5Bias(1, num_buckets=buckets, max_distance=far, bidirectional=bidirectional)
    assert torch.equal(ours.bucket(relative), theirs)


def test_case_39_t5_with_memory_depends_on_the_distance_only():
    _, _, _, got = biases(hw.T5Bias(HEADS), 3, 7, None)
    for i in range(2):
        for j in range(6):
            assert torch.equal(got[0, :, i, j], got[0, :, i + 1, j + 1])
    same = got[0, :, 0, 4]  # query 0 of 3 stands at key 4 of 7
    assert torch.equal(same, got[0, :, 1, 5])
    assert not torch.equal(same, got[0, :, 0, 3])


@pytest.mark.parametrize("heads", [1, 2, 7, 8, 12])
def test_case_35_alibi_has_the_slopes_of_bloom(heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mask = torch.ones(1, 5)
    theirs = bloom.build_alibi_tensor(mask, heads, torch.float32).view(heads, 5)
    slopes = hw.ALiBi(heads).slopes()
    accept(theirs[:, 1] - theirs[:, 0], slopes.float(), slopes)


@pytest.mark.parametrize(("queries", "keys", "offset"), PLACES)
def test_alibi_is_minus_slope_times_distance(queries, keys, offset):
    position = hw.ALiBi(HEADS)
    _, query, key, got = biases(position, queries, keys, offset)
    for i, at in enumerate(query):
        for j, to in enumerate(key):
            assert torch.equal(got[0, :, i, j], -position.slopes() * abs(at - to))


def test_case_36_rotary_pairs_are_those_of_llama_and_gpt_j():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    q, k = torch.randn(2, 2, 3, 7, 8, dtype=torch.float64).unbind()
    places = torch.arange(7, dtype=torch.float64)
    angle = places[:, None] / 10000 ** (torch.arange(0, 8, 2).double() / 8)
    both = torch.cat((angle, angle), -1)[None]
    expected = llama.apply_rotary_pos_emb(q, k, both.cos(), both.sin())
    got = hw.Rotary(8, pairs="halves").content(q, k, None)
    for ours, theirs in zip(got, expected, strict=True):
        accept(ours, theirs, theirs)
    theirs = gptj.apply_rotary_pos_emb(q.transpose(1, 2), angle.sin()[None], angle.cos()[None])
    ours = hw.Rotary(8, pairs="neighbours").content(q, k, None)[0]
    accept(ours.transpose(1, 2), theirs, theirs)


def test_permuting_the_numbers_of_a_head_turns_one_pairing_into_the_other():
    q, k = torch.randn(2, 2, 3, 7, 8, dtype=torch.float64).unbind()
    order = torch.arange(8).view(2, 4).T.flatten()  # 0 4 1 5 2 6 3 7
    halves = hw.Rotary(8, pairs="halves").content(q, k, None)
    neighbours = hw.Rotary(8, pairs="neighbours").content(q[..., order], k[..., order], None)
    for one, other in zip(halves, neighbours, strict=True):
        accept(other, one[..., order], one[..., order])


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_rotary_scores_depend_on_the_distance_only(pairs):
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).unbind()
    position = hw.Rotary(8, pairs=pairs)

    def score(query: int, key: int) -> torch.Tensor:
        turned, against = position.at([query], [key]).content(q, k, None)
        return turned @ against.mT

    accept(score(5, 3), score(1002, 1000), score(1002, 1000))
    accept(score(3, 5), score(1000, 1002), score(1000, 1002))
    assert not torch.equal(score(5, 3), score(5, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_case_37_angles_are_exact_in_half_precision(dtype):
    rows = torch.randn(1, 1, 1, 8, dtype=torch.float64).to(dtype)
    position = hw.Rotary(8, pairs="halves").at([4099], [4099])
    got = position.content(rows, rows, None)[0]
    exact = position.content(rows.double(), rows.double(), None)[0]
    accept(got, exact.to(dtype), exact)


def test_case_38_left_padding_takes_explicit_places():
    q, k, v = tensors(7, 7, groups=HEADS)
    pad = 3
    position = hw.Rotary(DIM, pairs="halves", rotary_dim=10)
    real = torch.arange(7) >= pad
    places = (torch.arange(7) - pad).clamp(min=0)
    mask = hw.padding(real.expand(2, -1)) & hw.causal()
    padded = hw.attend(q, k, v, mask=mask, position=position.at(places, places.expand(2, -1)))
    tail = [t[:, :, pad:] for t in (q, k, v)]
    alone = hw.attend(*tail, mask=hw.causal(), position=position)
    accept(padded[:, :, pad:], alone, alone)


@pytest.mark.parametrize("position", every_position(), ids=named)
def test_a_cache_gives_what_the_whole_gives(position):
    q, k, v = (t.detach() for t in tensors(7, 7, groups=HEADS))
    whole = hw.attend(q, k, v, mask=hw.causal(), position=position)
    seen = 0
    for size in (3, 1, 2, 1):
        rows = slice(seen, seen + size)
        seen += size
        part = hw.attend(
            q[:, :, rows], k[:, :, :seen], v[:, :, :seen], mask=hw.causal(), position=position
        )
        accept(part, whole[:, :, rows], whole[:, :, rows])


@pytest.mark.parametrize("position", every_position(), ids=named)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.NAME)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("make", [hw.full, lambda: hw.causal() & hw.padding([5, 0])])
def test_case_40_every_engine_gives_the_oracles_output_and_every_gradient(
    position, engine, dtype, make
):
    call = Call.of(*tensors(dtype=dtype), mask=make(), position=position)
    for reason in engine.why_not(call):
        pytest.skip(reason.en)
    accept_with_gradients(call, engine.run(call))


@pytest.mark.parametrize("position", every_position(2, 4, 3), ids=named)
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_derivatives_are_right_to_second_order(position, check):
    q, k = torch.randn(1, 2, 3, 4).double(), torch.randn(1, 1, 5, 4).double()
    v = torch.randn(1, 1, 5, 3).double()
    wide = position.double()
    inputs = [t.requires_grad_() for t in (q, k, v)] + list(wide.parameters())

    def output(*tensors_):
        return hw.attend(*tensors_[:3], mask=hw.window(2, 1), position=wide, engine="eager")

    assert check(output, inputs, fast_mode=True)


def test_a_position_says_in_which_stages_it_acts():
    x = torch.randn(2, 7, 6)
    q, k, v = tensors(groups=HEADS)
    shape = Call.of(q, k, v).shape
    query, key = (index.flatten() for index in shape.indices()[2:])
    for position in (*every_position(), hw.Sinusoidal(6), hw.Learned(11, 6)):
        wide = position.double()
        acts = {
            Stage.INPUT: not torch.equal(wide.embed(x.double()), x.double()),
            Stage.CONTENT: not torch.equal(wide.content(q, k, shape)[0], q),
            Stage.SCORES: wide.bias(q, query, key, 1.0) is not None,
            Stage.VALUES: wide.values(torch.rand(2, HEADS, 5, 7).double(), query, key) is not None,
        }
        assert {stage for stage, does in acts.items() if does} == set(position.stages)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: hw.attend(*tensors(), position="rope"), BadType, "position: expected a position"),
        (
            lambda: hw.attend(*tensors(), position=hw.Sinusoidal(11)),
            BadValue,
            r"use position\.embed",
        ),
        (
            lambda: hw.attend(*tensors(), position=hw.ALiBi(5)),
            BadValue,
            "created with H=5, but called with",
        ),
        (
            lambda: hw.attend(*tensors(), position=hw.Shaw(2, 7)),
            BadValue,
            "created with D=7, but called",
        ),
        (
            lambda: hw.attend(*tensors(), position=hw.Shaw(2, 11, value_dim=3)),
            BadValue,
            "created with Dv=3, but called with Dv=13",
        ),
        (lambda: hw.ALiBi(0), BadValue, "num_heads must be >= 1, got 0"),
        (lambda: hw.Shaw(-1, 2), BadValue, "max_distance must be >= 0, got -1"),
        (lambda: hw.T5Bias(2, num_buckets=2), BadValue, "num_buckets must be >= 4, got 2"),
        (lambda: hw.T5Bias(2, max_distance=8), BadValue, "max_distance must be above 8"),
        (lambda: hw.TransformerXL(2, 0), BadValue, "head_dim must be >= 1, got 0"),
        (lambda: hw.Rotary(5, pairs="halves"), BadValue, "rotary_dim must be even, .* got 5"),
        (lambda: hw.Rotary(4), BadValue, "pairs is required: use 'halves'"),
        (lambda: hw.Rotary(4, pairs="halfs"), BadValue, "pairs: unknown 'halfs'; expected one of"),
        (
            lambda: hw.Rotary(4, pairs="halves", base=0.5),
            BadValue,
            "base must be above 1 and finite, got 0.5",
        ),
        (
            lambda: hw.Rotary(4, pairs="halves").at([[[1]]], [1]),
            BadValue,
            r"queries must be numbers \(L,\) or \(B, L\)",
        ),
        (
            lambda: hw.attend(
                *tensors(), position=hw.Rotary(11, pairs="halves", rotary_dim=2).at([1, 2], [1])
            ),
            BadValue,
            r"positions of queries of shape \(5,\) or \(2, 5\), got \(2,\)",
        ),
    ],
)
def test_a_position_that_does_not_fit_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hw.Sinusoidal(0), "embed_dim must be >= 1, got 0"),
        (lambda: hw.Sinusoidal(4, base=0.5), "base must be above 1 and finite, got 0.5"),
        (lambda: hw.Learned(0, 4), "max_positions must be >= 1, got 0"),
        (lambda: hw.Learned(4, 0), "embed_dim must be >= 1, got 0"),
        (lambda: hw.Sinusoidal(4)(torch.zeros(1, 2, 3)), "of size embed_dim 4, got 3"),
        (
            lambda: hw.Learned(4, 3)(torch.zeros(1, 5, 3)),
            r"up to 3, got 0 to 4; use a longer table: Lea",
        ),
        (lambda: hw.Learned(4, 3)(torch.zeros(1, 2, 3), -1), "positions from 0 on, got -1 to 0"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(BadValue, match=message):
        make()


def test_two_positions_together_are_the_sum_of_both():
    q, k, v = (torch.randn(1, 4, 9, 8) for _ in range(3))
    rotary, alibi = hw.Rotary(8, pairs="halves"), hw.ALiBi(4)

    def both(*rows):
        (turned, against), places = rotary.content(*rows[:2], None), torch.arange(9)
        scores = turned @ against.mT / 8**0.5 + alibi.bias(rows[0], places, places, 1.0)
        return scores.softmax(-1) @ rows[2]

    output = hw.attend(q, k, v, position=rotary + alibi)
    accept(output, both(q, k, v), both(q.double(), k.double(), v.double()))


def test_two_positions_together_count_from_the_first_token_in_a_cache():
    torch.manual_seed(0)
    position = hw.Rotary(8, pairs="halves") + hw.Shaw(3, 8)
    layer = hw.MultiheadAttention(32, 4, batch_first=True, position=position, mask=hw.causal())
    x, cache = torch.randn(2, 7, 32), hw.nn.GrowingCache()
    whole = layer(x, x, x)[0]
    steps = [layer(row, row, row, cache=cache)[0] for row in x.split(1, 1)]
    exact = copy.deepcopy(layer).double()(*[x.double()] * 3)[0]
    accept(torch.cat(steps, 1), whole, exact)


def test_positions_of_different_sizes_do_not_combine():
    with pytest.raises(BadValue, match="first position has H=4, the second has H=2"):
        hw.ALiBi(4) + hw.T5Bias(2)
    with pytest.raises(BadValue, match="Sinusoidal is added before the projections"):
        hw.ALiBi(4) + hw.Sinusoidal(8)
