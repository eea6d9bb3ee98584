"""Reported faults: masks, windows and grouped heads."""

from fractions import Fraction

import pytest
import torch

import headwise as hw
from headwise.call import Call
from headwise.engines import ENGINES, eager, flex, lsh
from headwise.errors import EngineRefused
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import HEADS, Largest, accept_with_gradients, tensors

HERE = [pytest.param(engine, id=engine.NAME) for engine in ENGINES if engine not in (flex, lsh)]
F32 = torch.float32


def run(engine, call: Call):
    for reason in engine.why_not(call):
        pytest.skip(reason.en)
    return engine.run(call)


def seen(engine, mask, queries: int, keys: int, offset: int | None = None) -> torch.Tensor:
    """Which keys an engine lets through, (Lq, Lk): with the identity as values it gives weights."""
    q, k = torch.zeros(1, 1, queries, 3), torch.zeros(1, 1, keys, 3)
    v = torch.eye(keys)[None, None]
    return run(engine, Call.of(q, k, v, mask=mask, offset=offset)).output[0, 0] > 0


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize("groups", [1, 2, 3, HEADS])
@pytest.mark.parametrize("sizes", [(5, 5), (5, 17), (37, 19)])
def test_case_13_grouped_heads_under_a_mask_for_each_sample(engine, groups, sizes):
    """pytorch#177482: a (B, L, S) mask with grouped heads."""
    mask = hw.from_tensor(torch.rand(2, *sizes) > 0.4, "b q k")
    call = Call.of(*tensors(*sizes, groups=groups, dtype=F32), mask=mask)
    accept_with_gradients(call, run(engine, call))


@pytest.mark.parametrize("dtype", [F32, torch.float64])
@pytest.mark.parametrize("inside", [torch.bfloat16, torch.float16])
def test_case_14_half_precision_under_a_wider_float_mask(dtype, inside):
    """pytorch#99012, #111276, #84396: the mask is added in float32 at least, whatever its dtype."""
    q, k, v = tensors(37, 19, dtype=inside)
    mask = hw.from_tensor(torch.randn(37, 19, dtype=dtype), "q k")
    for engine in ENGINES:
        call = Call.of(q, k, v, mask=mask)
        if not list(engine.why_not(call)):
            accept_with_gradients(call, engine.run(call))


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize("sizes", [(43, 77), (77, 43), (1, 77), (351, 701)])
def test_case_15_an_additive_bias_at_any_length(engine, sizes):
    """xformers#813, #808, diffusers#9637: lengths that are no multiple of 8."""
    mask = hw.from_tensor(torch.randn(*sizes), "q k")
    call = Call.of(*tensors(*sizes, dtype=F32, batch=1), mask=mask)
    accept_with_gradients(call, run(engine, call))


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize("sizes", [(1, 8), (2, 6), (5, 2), (7, 7), (67, 131), (131, 67)])
def test_case_17_causal_is_lower_right_in_every_engine(engine, sizes):
    """pytorch#103082, #108108, flash-attention#1778: the last query sees every key."""
    queries, keys = sizes
    counts = torch.tensor([max(0, keys - queries + i + 1) for i in range(queries)])
    expected = torch.arange(keys) < counts[:, None]
    assert torch.equal(seen(engine, hw.causal(), queries, keys), expected)


@pytest.mark.parametrize("weights", [True, False])
def test_case_18_is_causal_beside_a_mask_is_their_and(weights):
    """pytorch#99282, #118972, #126873: a flag that contradicts the mask."""
    module, x = hw.MultiheadAttention(15, 3, batch_first=True), torch.randn(2, 7, 15)
    ahead = torch.ones(7, 7, dtype=torch.bool).tril(-2)  # torch's True: blocked
    both = ahead | torch.ones(7, 7, dtype=torch.bool).triu(1)
    flagged = module(x, x, x, attn_mask=ahead, is_causal=True, need_weights=weights)[0]
    given = module(x, x, x, attn_mask=both, need_weights=True)[0]
    exact = module.double()(*(x.double(),) * 3, attn_mask=both)[0]
    accept(flagged, given, exact)


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize("left", [0, 3, 4, 11])
@pytest.mark.parametrize("right", [0, 1, 7])
@pytest.mark.parametrize("sizes", [(15, 15), (21, 21), (7, 15), (67, 67), (15, 7)])
def test_cases_16_21_22_23_30_windows_are_exact_for_every_token(engine, left, right, sizes):
    """HF#39408, local-attention#5, #21, longformer#102, NATTEN#122, onnx PR#8006: any window, odd
    or even, causal or not, longer than the input or not, at any length."""
    queries, keys = sizes
    expected = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries):
        here = i + keys - queries
        for j in range(keys):
            expected[i, j] = -right <= here - j <= left
    assert torch.equal(seen(engine, hw.window(left, right), queries, keys), expected)
    behind = expected & (torch.arange(keys) <= torch.arange(queries)[:, None] + keys - queries)
    both = hw.causal() & hw.window(left, right)
    assert torch.equal(seen(engine, both, queries, keys), behind)


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize(
    "make",
    [
        hw.causal,
        lambda: hw.causal() & hw.window(3, 0),
        lambda: hw.causal() & hw.dilated(3, 0, step=2),
        lambda: hw.causal() & (hw.window(2, 0) | hw.global_tokens([0], symmetric=False)),
        lambda: hw.causal() & hw.documents([4, 7]),
        lambda: hw.causal() & hw.strided(3),
    ],
)
@pytest.mark.parametrize(
    "position", [None, hw.ALiBi(HEADS), hw.Rotary(11, pairs="halves", rotary_dim=10)]
)
def test_case_20_chunks_after_a_cache_are_the_whole(engine, make, position):
    """candle PR#3743, onnx#8054, gpt-neox PR#1178: a cache of 5, then 1, 2 and 3 tokens."""
    q, k, v = (t.detach() for t in tensors(11, 11, dtype=F32))
    call = Call.of(q, k, v, mask=make(), position=position)
    oracle, plain = reference(call).output, reference(call, F32).output
    for first, last in ((0, 5), (5, 6), (6, 8), (8, 11)):
        mask = make() if "documents" not in make().name else hw.causal() & _documents(last)
        part = Call.of(
            q[:, :, first:last], k[:, :, :last], v[:, :, :last], mask=mask, position=position
        )
        got = run(engine, part).output
        rows = slice(first, last)
        accept(got, plain[:, :, rows], oracle[:, :, rows])


def _documents(length: int):
    """Documents of 4 and 7 tokens, as far as they have come."""
    return hw.documents([4, length - 4] if length > 4 else [length])


@pytest.mark.parametrize("engine", [pytest.param(e, id=e.NAME) for e in ENGINES if e is not eager])
def test_case_29_what_an_engine_cannot_do_is_refused_with_every_reason(engine):
    """accelerate PR#4177: never another pattern in its place, never silence."""
    q, k, v = tensors(7, 5, dtype=F32)
    needs = ("weights", "entropy")
    call = Call.of(q, k, v, mask=hw.causal(), need=needs, dropout=0.5)
    reasons = list(engine.why_not(call))
    if not reasons:
        pytest.skip("it refuses nothing of this")
    with pytest.raises(EngineRefused) as refused:
        hw.attend(q, k, v, mask=hw.causal(), need=needs, dropout=0.5, engine=engine.NAME)
    assert all(reason.en in str(refused.value) for reason in reasons)
    assert all(reason.zh for reason in reasons)


@pytest.mark.parametrize("heads", [*range(1, 33), 71])
def test_case_35_alibi_slopes_for_any_number_of_heads(heads):
    """mlx#343, HF PR#28380: powers of 2^(-8/n), then every other one of twice as many."""
    power = 1 << (heads.bit_length() - 1)
    exponents = [Fraction(-8 * (i + 1), power) for i in range(power)]
    exponents += [Fraction(-8 * (2 * i + 1), 2 * power) for i in range(heads - power)]
    exact = torch.tensor([2.0 ** float(e) for e in exponents], dtype=torch.float64)
    accept(hw.ALiBi(heads).slopes(), exact, exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("place", [1857, 4099, 65537, 100003])
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_case_37_far_rotary_angles_in_half_precision(dtype, place, pairs):
    """gpt-neox#1003, candle PR#3520: the angle is exact, the result rounds once."""
    q = torch.randn(1, 1, 3, 10, dtype=dtype)
    position = hw.Rotary(10, pairs=pairs).at([place, place + 1, place + 2], [0, 1, 2])
    turned, _ = position.content(q, q, None)
    wide = q.double()
    angle = (
        torch.arange(place, place + 3).double()[:, None]
        * 10000.0 ** (-torch.arange(5) / 5.0).double()
    )
    first, second = (
        (wide[..., :5], wide[..., 5:]) if pairs == "halves" else (wide[..., 0::2], wide[..., 1::2])
    )
    pair = first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()
    exact = torch.cat(pair, -1) if pairs == "halves" else torch.stack(pair, -1).flatten(-2)
    accept(turned, exact.to(dtype), exact)


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
def test_case_50_more_keys_than_16_bits_count(engine, dtype):
    """pytorch#162588: S = 65537 with a mask."""
    q, k, v = torch.randn(1, 1, 3, 5), torch.randn(1, 1, 65537, 5), torch.randn(1, 1, 65537, 7)
    keep = torch.zeros(65537, dtype=torch.bool)
    keep[[0, 32768, 65535, 65536]] = True
    call = Call.of(*(t.to(dtype) for t in (q, k, v)), mask=hw.padding(keep[None]))
    few = Call.of(*(t.to(dtype) for t in (q, k[:, :, keep], v[:, :, keep])))
    got = run(engine, call).output
    accept(got, reference(few, dtype).output, reference(few).output)


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize("groups", [2, 3])
def test_case_52_query_head_h_reads_key_head_h_over_its_group(engine, groups):
    """axlearn PR#842, onnx PR#7274: repeated, never tiled."""
    q, k, v = tensors(7, 5, groups=groups, dtype=F32)
    order = torch.arange(HEADS) // (HEADS // groups)
    grouped = run(engine, Call.of(q, k, v)).output
    each = Call.of(q, k[:, order], v[:, order])
    accept(grouped, reference(each, F32).output, reference(each).output)
    tiled = Call.of(q, k[:, torch.arange(HEADS) % groups], v[:, torch.arange(HEADS) % groups])
    with pytest.raises(AssertionError):
        accept(grouped, reference(tiled, F32).output, reference(tiled).output)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(11, 37), slice(90, 101)])
@pytest.mark.parametrize("mask", [hw.window(7, 3), hw.causal() & hw.window(13, 0)], ids=str)
def test_case_24_the_weights_of_chosen_rows_are_dense_columns(mask, rows):
    """HF#5646: weights of a window pattern, in columns of the sequence and for the rows asked."""
    q, k, v = tensors(101, 101, dtype=F32)
    whole = reference(Call.of(q, k, v, mask=mask)).weights
    plain = reference(Call.of(q, k, v, mask=mask), F32).weights
    part = hw.attend(q[:, :, rows], k, v, mask=mask, offset=rows.start, need=["weights"])
    assert part.weights is not None
    assert part.weights.shape == (*q.shape[:2], rows.stop - rows.start, 101)
    accept(part.weights, plain[:, :, rows], whole[:, :, rows])


def test_case_24_chosen_rows_cost_no_square_of_the_length():
    q = torch.randn(1, 1, 16384, 8)
    part = hw.attend(
        q[:, :, 9000:9002], q, q, mask=hw.window(64, 64), offset=9000, need=["weights"]
    )
    assert part.weights is not None
    assert part.weights.shape == (1, 1, 2, 16384)
    assert (part.weights > 0).sum(-1).flatten().tolist() == [129, 129]


@pytest.mark.parametrize("mask", [hw.window(255, 0), hw.causal() & hw.window(100, 0)], ids=str)
def test_case_25_the_cost_of_a_sliding_window_follows_the_window(mask):
    """HF#29777, pytorch#119653: twice the length is so much more work, and far from the square."""
    plans = [hw.plan(*[torch.zeros(1, 1, n, 8)] * 3, mask=mask) for n in (8192, 16384, 32768)]
    assert {plan.engine for plan in plans} == {"tiled"}
    quarter, half, whole = (plan.flops for plan in plans)
    assert whole - half == 2 * (half - quarter) > 0
    assert plans[1].share < 4 * 256 / 16384


WIDE = 31
"""D, more than twice the heads: scores, and a mask beside them, are then less than L x L x D."""


def relative():
    """Every relative position that is learned."""
    return {
        "shaw": hw.Shaw(16, WIDE),
        "shaw with values": hw.Shaw(16, WIDE, value_dim=WIDE),
        "transformer-xl": hw.TransformerXL(HEADS, WIDE),
        "t5": hw.T5Bias(HEADS),
    }


@pytest.mark.parametrize("name", list(relative()))
@pytest.mark.parametrize("engine", HERE)
def test_case_33_no_relative_position_builds_l_times_l_times_d(engine, name):
    """Attention-Augmented-Conv2d#12: forward and backward, in every engine that takes it."""
    length = 257
    q, k, v = (torch.randn(1, HEADS, length, WIDE, requires_grad=True) for _ in range(3))
    call = Call.of(q, k, v, mask=hw.causal(), position=relative()[name])
    with Largest() as most:
        run(engine, call).output.sum().backward()
    assert HEADS * length * WIDE <= most.numbers < length * length * WIDE
