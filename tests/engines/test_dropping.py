"""Dropout by a hash: engines drop the same pairs, the output is exact, the hash is uniform."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.call import Call
from headwise.engines import best, blockwise, eager, tiled
from headwise.engines import dropout as dropping
from headwise.engines.dropout import Keep, draw_call_seed
from headwise.masks import Tile
from headwise.reference import reference
from headwise.shapes import AttentionShape
from headwise.verify.oracle.tolerance import accept
from tests.examples import (
    DIM,
    HEADS,
    every_mask,
    every_position,
    identity,
    named,
    rounded_otherwise,
    tensors,
)
from tests.roundings import hold

ENGINES = [pytest.param(engine, id=engine.NAME) for engine in (eager, blockwise, tiled)]
SEED, DROPOUT = 7, 0.3


def number() -> int:
    """The number of the call that follows `torch.manual_seed(SEED)`."""
    torch.manual_seed(SEED)
    return draw_call_seed()


def dropped(call: Call, dtype: torch.dtype) -> Tensor:
    """The reference's weights, dropped by hand, times the values."""
    weights = reference(call, dtype).weights
    keep = Keep(DROPOUT, number()).dense(call.shape)
    used = torch.where(keep, weights, 0.0) / (1 - DROPOUT)
    v = call.v.to(dtype).repeat_interleave(call.group, 1)
    added = call.position.values(used, *call.position_ids())
    return used @ v if added is None else used @ v + added


def check(engine, *qkv: Tensor, **options) -> None:
    """The output and every gradient of an engine, by the rule."""
    call = Call.of(*qkv, **options)
    torch.manual_seed(SEED)
    found = engine.run(Call.of(*qkv, dropout=DROPOUT, **options)).output
    exact = dropped(call, torch.float64)
    seed = torch.randn_like(exact)

    def numbers(output: Tensor, of: Call) -> list[Tensor]:
        learned = (p for p in of.position.parameters() if p.requires_grad)
        inputs = (of.q, of.k, of.v, *learned)
        return [output, *torch.autograd.grad(output, inputs, seed.to(output.dtype))]

    def gradients(run: int) -> list[Tensor]:
        other = rounded_otherwise(call, run)
        return numbers(dropped(other, found.dtype), other)

    near = dropped(call, found.dtype)
    hold(*(numbers(each, call) for each in (found, near, exact)), gradients)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mask", every_mask(), ids=identity)
def test_engines_drop_the_same(engine, mask):
    check(engine, *tensors(dtype=torch.float32), mask=mask)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("position", every_position(), ids=named)
def test_with_every_position(engine, position):
    check(engine, *tensors(dtype=torch.float32), position=position)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_over_many_tiles_and_blocks(engine, dtype):
    """Bands, lines and tiles, with lengths that are multiples of nothing."""
    mask = (hw.window(17, 5) | hw.global_tokens([0, 61])) & hw.padding([211, 149])
    check(engine, *tensors(211, 211, dtype=dtype), mask=mask)
    check(engine, *tensors(97, 211, dtype=dtype), mask=hw.causal() & hw.window(63, 0))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "mask",
    [
        hw.window(0, 0),
        hw.window(0, 0) | hw.window(0, 0),
        hw.dilated(5, 0, step=100) | hw.dilated(0, 2, step=100),
        hw.causal() & hw.global_tokens([0], symmetric=False),
    ],
    ids=identity,
)
def test_a_query_with_one_key_has_no_gradient_but_that_of_the_value(engine, mask):
    """What is kept and what is not must be known as such of the same plan."""
    q, k, v = tensors(67, 67, dtype=torch.float32)
    torch.manual_seed(SEED)
    output = engine.run(Call.of(q, k, v, mask=mask, dropout=DROPOUT)).output
    from_q, from_k, from_v = torch.autograd.grad(output.square().sum(), (q, k, v))
    assert from_v.any()
    for gradient in (from_q, from_k):
        anchored = torch.cat((gradient.flatten(), from_v.flatten()))
        exact = torch.cat((torch.zeros_like(gradient).flatten(), from_v.flatten()))
        accept(anchored, exact, exact.double())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sink_is_never_dropped(engine):
    q, k, v = tensors(dtype=torch.float32)
    sinks = torch.randn(HEADS)
    check(engine, q, k, v, mask=hw.causal(), sinks=sinks)


@pytest.mark.parametrize("engine", ENGINES)
def test_everything_dropped_is_zero_with_zero_gradients(engine):
    inputs = tensors(dtype=torch.float32)
    output = engine.run(Call.of(*inputs, dropout=1.0, mask=hw.causal())).output
    assert not output.any()
    for gradient in torch.autograd.grad(output.sum(), inputs):
        assert not gradient.any()


@pytest.mark.parametrize("engine", ENGINES)
def test_hidden_numbers_stay_hidden(engine):
    q, k, v = (t.detach() for t in tensors(dtype=torch.float32))
    k[1, :, 5:], v[1, :, 5:] = torch.nan, torch.inf
    inputs = [t.requires_grad_() for t in (q, k, v)]
    torch.manual_seed(SEED)
    call = Call.of(*inputs, mask=hw.padding([7, 5]), dropout=DROPOUT)
    output = engine.run(call).output
    assert output.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(output.sum(), inputs))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_measured_is_before_dropout(engine):
    inputs = tensors(41, 43, dtype=torch.float32)
    with_, without = (
        engine.run(Call.of(*inputs, need=["logsumexp"], dropout=p)) for p in (DROPOUT, 0.0)
    )
    assert torch.equal(with_.logsumexp, without.logsumexp)
    silent = engine.run(Call.of(*inputs, dropout=DROPOUT))
    assert silent.logsumexp is None


@pytest.mark.parametrize("engine", ENGINES)
def test_it_can_be_differentiated_twice(engine):
    q, k = torch.randn(1, 2, 5, 3).double(), torch.randn(1, 1, 7, 3).double()
    v = torch.randn(1, 1, 7, 2).double()

    def output(*qkv):
        torch.manual_seed(SEED)
        return engine.run(Call.of(*qkv, mask=hw.window(3, 1), dropout=DROPOUT)).output

    inputs = [t.requires_grad_() for t in (q, k, v)]
    assert torch.autograd.gradcheck(output, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(output, inputs, fast_mode=True)


def test_a_checkpoint_drops_the_same_again():
    from torch.utils.checkpoint import checkpoint

    inputs = tensors(61, 61, dtype=torch.float32)

    def output(*qkv):
        return hw.attend(*qkv, mask=hw.window(5, 0), dropout=DROPOUT, engine="tiled")

    gradients = []
    for run in (output, lambda *qkv: checkpoint(output, *qkv, use_reentrant=False)):
        torch.manual_seed(SEED)
        gradients.append(torch.autograd.grad(run(*inputs).sum(), inputs))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


# --- which pairs --------------------------------------------------------------------------------


def finaliser(x: int, last: bool = True) -> int:
    """MurmurHash3's, in unsigned integers of 32 bits."""
    x ^= x >> 16
    x = x * 0x85EBCA6B % 2**32
    x ^= x >> 13
    x = x * 0xC2B2AE35 % 2**32
    return x ^ x >> 16 if last else x


@given(
    pair=st.tuples(*[st.integers(0, 2**20)] * 4),
    call=st.integers(0, 2**31 - 1),
    dropout=st.floats(0, 1),
)
def test_a_pair_is_kept_by_the_hash_that_is_described(pair, call, dropout):
    b, h, q, k = pair
    row = finaliser((b + call) % 2**32)
    row = finaliser(finaliser(row ^ h) ^ q)
    x = finaliser(row ^ finaliser(k + 0x5BD1E995), last=False)
    signed = x - 2**32 if x >= 2**31 else x
    expected = signed >= round(dropout * 2**32) - 2**31
    indices = (torch.tensor(each) for each in pair)
    assert bool(Keep(dropout, call).rule(*indices)) == expected


@given(rows=st.tuples(st.integers(0, 50), st.integers(1, 50)), number=st.integers(0, 2**31 - 1))
def test_a_piece_is_a_piece_of_the_whole(rows, number):
    """In whatever order pairs are evaluated, and with whatever offset of the queries."""
    first, size = rows
    keep, cpu = Keep(0.5, number), torch.device("cpu")
    whole = keep.dense(AttentionShape(2, 3, 101, 101, 0, cpu))
    piece = keep.dense(AttentionShape(2, 3, size, 101, first, cpu))
    assert torch.equal(piece, whole[:, :, first : first + size])


def test_a_tile_of_it_is_always_mixed():
    assert Keep(0.5, 1).tile(range(3), range(5)) is Tile.MIXED
    assert not Keep(1.0, 1).dense(AttentionShape(1, 1, 9, 9, 0, torch.device("cpu"))).any()
    assert Keep(0.0, 1).dense(AttentionShape(1, 1, 9, 9, 0, torch.device("cpu"))).all()


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_pairs_are_spread_as_if_drawn(dropout):
    """Sums over N pairs of standardised bits are within 5 standard deviations of 0.

    Of all; of neighbours along every axis, and across; of squares of four pairs, in which sums of a
    row's and a key's own number would show; and between two calls.
    """
    shape = AttentionShape(3, 4, 257, 263, 0, torch.device("cpu"))
    spread = (dropout * (1 - dropout)) ** 0.5
    x, other = ((Keep(dropout, n).dense(shape).double() - (1 - dropout)) / spread for n in (5, 6))
    products = [x, x * other, x[..., 1:, 1:] * x[..., :-1, :-1]]
    products += [
        x.narrow(axis, 0, length - lag) * x.narrow(axis, lag, length - lag)
        for axis, length in enumerate(x.shape)
        for lag in (1, 2)
    ]
    square = x[..., 1:, :] * x[..., :-1, :]
    products.append(square[..., 1:] * square[..., :-1])
    for each in products:
        assert abs(each.sum().item()) < 5 * each.numel() ** 0.5
    for axis in (-1, -2):
        assert x.sum(axis).abs().max().item() < 6 * x.shape[axis] ** 0.5


def test_calls_differ_and_the_generator_says_which():
    torch.manual_seed(3)
    first, second = draw_call_seed(), draw_call_seed()
    torch.manual_seed(3)
    assert (first, second) == (draw_call_seed(), draw_call_seed())
    assert first != second


# --- who runs it --------------------------------------------------------------------------------


def test_a_long_window_with_dropout_runs_tiled():
    long = torch.zeros(1, HEADS, 2048, 4)
    assert best(Call.of(long, long, long, mask=hw.window(9, 9), dropout=0.5)) is tiled
    assert best(Call.of(long, long, long, need=["entropy"], dropout=0.5)) is blockwise


def test_under_a_transform_eager_draws_for_itself():
    q = torch.randn(3, 2, 1, 5, DIM)

    def output(x):
        return hw.attend(x, x, x, dropout=0.5)

    found = torch.func.vmap(output, randomness="different")(q)
    assert found.shape == q.shape


def test_few_pairs_are_written_out_at_once(monkeypatch):
    """What stays is another mask for each sample and head, and counts for each."""
    from headwise.engines.tiled import forward, scores

    sizes, real = [], scores.score_terms

    def watched(*args):
        extra = real(*args)
        if extra.scores is not None and len(extra.scores[0]) > 1:  # not the same for every head
            sizes.append(extra.scores.numel())
        return extra

    monkeypatch.setattr(scores, "score_terms", watched)
    monkeypatch.setattr(forward, "DROPPED", 1 << 14)
    q, k, v = (t.detach() for t in tensors(211, 211, dtype=torch.float32))
    hw.attend(q, k, v, mask=hw.window(17, 5), dropout=0.5, engine="tiled")
    assert sizes
    assert max(sizes) <= 1 << 14


def test_a_mask_that_drops_is_known_inside_others():
    mask = hw.window(9, 9)
    assert not dropping.drops(mask | ~mask)
    assert dropping.drops(~(mask & Keep(0.5, 1)))
    assert dropping.drops(mask | (mask & Keep(0.5, 1)))
