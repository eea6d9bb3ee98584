"""Statistics of the weights from every engine, compared with formulas on the oracle's weights."""

from dataclasses import fields

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import headwise as hw
from headwise.call import NEEDS, Call, Result
from headwise.cli import plan
from headwise.engines import blockwise, eager, flex, sdpa, tiled
from headwise.engines.blockwise import streaming
from headwise.engines.statistics import STATISTICS
from headwise.errors import BadValue, EngineRefused
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import (
    HEADS,
    Largest,
    accept_with_gradients,
    every_mask,
    every_position,
    formulas,
    identity,
    named,
    tensors,
)

WORDS = tuple(name for name, _ in STATISTICS)
BOTH = [pytest.param(engine, id=engine.NAME) for engine in (eager, blockwise)]


def accept_statistics(call: Call, result: Result) -> None:
    """Assert that every statistic and the logsumexp are accepted, and 0 where a query is blind."""
    oracle, plain = formulas(call, torch.float64), formulas(call, call.q.dtype)
    for word in WORDS:
        accept(getattr(result, word), plain[word], oracle[word])
    steps = reference(call)
    accept(result.logsumexp, reference(call, call.q.dtype).logsumexp, steps.logsumexp)
    blind = ~steps.allowed.any(-1)
    assert not any(getattr(result, word)[blind].any() for word in WORDS if word != "received")
    assert (result.logsumexp[blind] == -torch.inf).all()


@pytest.fixture
def small_blocks(monkeypatch):
    """Three rows of one sample at a time, so that small tensors have many blocks."""
    monkeypatch.setattr(blockwise, "BLOCK_SCORES", 1)
    monkeypatch.setattr(blockwise, "MIN_ROWS", 3)
    monkeypatch.setattr(blockwise, "MIN_ROWS_BIASED", 3)
    monkeypatch.setattr(streaming, "BLOCK_SCORES", 1)
    monkeypatch.setattr(streaming, "MIN_ROWS", 3)


DTYPES, GROUPS = (torch.float32, torch.float64, torch.bfloat16), (1, 3, HEADS)


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("dtype", range(3), ids=map(str, DTYPES))
@pytest.mark.parametrize("number", range(len(every_mask())))
def test_statistics_are_those_of_the_oracle(engine, dtype, number, small_blocks):
    """Every mask with every dtype and every number of groups, and these with each other."""
    mask, groups = every_mask()[number], GROUPS[(number + dtype) % 3]
    inputs = tensors(groups=groups, dtype=DTYPES[dtype])
    call = Call.of(*inputs, mask=mask, need=(*WORDS, "logsumexp"))
    with torch.no_grad():
        accept_statistics(call, engine.run(call))


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("keys", [1, 5, 10, 19, 33, 100, 127, 255, 257])
def test_blind_rows_of_any_number_of_keys_have_statistics(engine, dtype, keys):
    """Where nothing is seen all scores are the lowest number there is, whose sum may overflow."""
    inputs = tensors(3, keys, dtype=dtype)
    call = Call.of(*inputs, mask=hw.padding([0, keys]), need=(*WORDS, "logsumexp"))
    with torch.no_grad():
        accept_statistics(call, engine.run(call))


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("position", every_position(), ids=named)
@pytest.mark.parametrize(("queries", "keys", "offset"), [(7, 5, None), (5, 11, 2), (7, 7, -3)])
def test_every_position_and_offset(engine, position, queries, keys, offset, small_blocks):
    inputs = tensors(queries, keys, dtype=torch.float32)
    mask = hw.window(3, 2) & hw.padding([keys, keys - 2])
    call = Call.of(*inputs, mask=mask, position=position, offset=offset, need=NEEDS[1:])
    with torch.no_grad():
        accept_statistics(call, engine.run(call))


@pytest.mark.parametrize("mask", every_mask(7, 5), ids=identity)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_blocks_have_the_output_and_gradients_of_the_oracle(mask, dtype, small_blocks):
    call = Call.of(*tensors(7, 5, dtype=dtype), mask=mask, need=WORDS)
    accept_with_gradients(call, blockwise.run(call))


@pytest.mark.parametrize("position", every_position(), ids=named)
@pytest.mark.parametrize("groups", [1, HEADS])
def test_many_blocks_have_the_gradients_of_every_position(position, groups, small_blocks):
    inputs = tensors(7, 5, groups=groups, dtype=torch.float32)
    call = Call.of(*inputs, mask=hw.causal() | hw.window(0, 1), position=position)
    result = blockwise.run(call)
    oracle, plain = reference(call), reference(call, torch.float32)
    accept(result.output, plain.output, oracle.output)
    inputs = (*inputs, *position.parameters())
    found = (torch.autograd.grad(r.output.square().sum(), inputs) for r in (result, plain, oracle))
    for got, near, exact in zip(*found, strict=True):
        accept(got, near, exact)


def test_gradients_of_many_blocks_are_summed_exactly_in_half_precision(monkeypatch):
    """A sum of 523 numbers in bfloat16 stops growing long before its end."""
    monkeypatch.setattr(blockwise, "BLOCK_SCORES", 1)
    monkeypatch.setattr(blockwise, "MIN_ROWS", 1)
    inputs = tensors(523, 3, batch=1, dtype=torch.bfloat16)
    call = Call.of(*inputs)
    results = blockwise.run(call), reference(call, torch.bfloat16), reference(call)
    found = (torch.autograd.grad(result.output.sum(), inputs) for result in results)
    for got, near, exact in zip(*found, strict=True):
        accept(got, near, exact)


def asked_of(engine, mask, position=None):
    """The output and every statistic of an engine, as a function of q, k and v."""

    def answer(*qkv):
        result = engine.run(Call.of(*qkv, mask=mask, position=position, need=NEEDS[1:]))
        return (result.output, *(getattr(result, word) for word in WORDS))

    return answer


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("mask", [hw.full(), hw.causal(), hw.padding([3, 0]) & hw.window(2, 1)])
def test_statistics_have_every_derivative(engine, check, mask, small_blocks):
    q, k = torch.randn(2, 6, 5, 2).double(), torch.randn(2, 3, 7, 2).double()
    inputs = [t.requires_grad_() for t in (q, k, torch.randn(2, 3, 7, 1).double())]
    assert check(asked_of(engine, mask), inputs, fast_mode=True)


@pytest.mark.parametrize("engine", BOTH)
def test_a_weight_that_vanishes_has_an_entropy_and_a_finite_gradient(engine):
    q = torch.tensor([[[[1.0]]]], requires_grad=True)
    k = torch.tensor([[[[0.0], [-1e4]]]], requires_grad=True)
    entropy = engine.run(Call.of(q, k, k, need=["entropy"])).entropy
    assert entropy.item() == 0
    gradients = torch.autograd.grad(entropy.sum(), (q, k))
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("engine", BOTH)
def test_a_nan_in_a_key_is_seen_and_one_in_padding_is_not(engine):
    q, k, v = (t.detach() for t in tensors(7, 7, dtype=torch.float32))
    clean = engine.run(Call.of(q, k, v, mask=hw.padding([6, 6]), need=WORDS))
    k[:, :, 6] = v[:, :, 6] = torch.nan
    dirty = engine.run(Call.of(q, k, v, mask=hw.padding([6, 6]), need=WORDS))
    shown = engine.run(Call.of(q, k, v, need=WORDS))
    for word in ("output", *WORDS):
        assert torch.equal(getattr(clean, word), getattr(dirty, word))
        assert getattr(shown, word).isnan().all()


@pytest.mark.parametrize("engine", BOTH)
def test_equal_scores_by_hand(engine):
    """Two queries at places 2 and 3 share their attention among 4 keys alike."""
    q, k = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 4, 1)
    result = engine.run(Call.of(q, k, k, need=WORDS))
    exact = torch.full((1, 1, 2), 4.0, dtype=torch.float64).log()
    accept(result.entropy, exact.float(), exact)
    assert result.received.tolist() == [[[0.5] * 4]]
    assert result.distance.tolist() == [[[(2 + 1 + 0 + 1) / 4, (3 + 2 + 1 + 0) / 4]]]
    assert result.largest.tolist() == [[[0.25, 0.25]]]


@pytest.mark.parametrize("engine", BOTH)
def test_one_visible_key_by_hand(engine):
    """Each query sees only the key two places behind; the first two see none."""
    q, k, v = (t.detach() for t in tensors(5, 5, dtype=torch.float32))
    result = engine.run(Call.of(q, k, v, mask=hw.window(2, 0) & ~hw.window(1, 0), need=WORDS))
    assert not result.entropy.any()
    for word, row in {
        "received": [1, 1, 1, 0, 0],
        "distance": [0, 0, 2, 2, 2],
        "largest": [0, 0, 1, 1, 1],
    }.items():
        assert torch.equal(getattr(result, word), torch.tensor(row).float().expand(2, HEADS, 5))


@pytest.mark.parametrize("sizes", [(257, 401), (401, 257)])
@pytest.mark.parametrize(
    "mask",
    [
        hw.full(),
        hw.causal(),
        hw.window(29, 7),
        hw.window(2, 2) & ~hw.prefix(211),
        hw.per_head([hw.causal(), ~hw.causal()] * (HEADS // 2)),
    ],
    ids=identity,
)
def test_tiles_that_are_skipped_change_nothing(mask, sizes, monkeypatch):
    """Long enough for several tiles, of which a window leaves most out of a block."""
    monkeypatch.setattr(blockwise, "BLOCK_SCORES", 1)
    call = Call.of(*tensors(*sizes, dtype=torch.float32), mask=mask, need=NEEDS[1:])
    result = blockwise.run(call)
    accept_statistics(call, result)
    accept_with_gradients(call, result)


@pytest.mark.parametrize("position", [None, hw.Shaw(3, 11, value_dim=13), hw.ALiBi(HEADS)], ids=str)
@pytest.mark.parametrize("mask", [hw.full(), hw.causal(), hw.padding([1013, 7])], ids=identity)
def test_case_42_nothing_of_the_size_of_the_weights_is_made(mask, position, monkeypatch):
    """Forward and backward, all heads together, hold a fraction of Lq x Lk of one sample."""
    monkeypatch.setattr(blockwise, "BLOCK_SCORES", 1)
    length = 1031
    q, k, v = tensors(length, length, dtype=torch.float32)
    with Largest() as most:
        result = hw.attend(q, k, v, mask=mask, position=position, need=NEEDS[1:], engine="rows")
        (result.output.sum() + result.entropy.sum()).backward()
    assert 0 < most.numbers < HEADS * length * length // 4


def test_what_is_kept_for_the_backward_pass_is_not_the_weights():
    q, k, v = tensors(257, 263, dtype=torch.float32)
    kept = {}
    for engine in (blockwise, eager):
        numbers = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda saved, numbers=numbers: numbers.append(saved.numel()) or saved,
            lambda saved: saved,
        ):
            engine.run(Call.of(q, k, v, mask=hw.causal(), need=WORDS))
        kept[engine] = sum(numbers)
    assert kept[blockwise] < 2 * HEADS * 257 * 263 < kept[eager]


def test_memory_is_that_of_one_block_however_long_the_call():
    most = []
    for length in (1031, 2063):
        q = torch.randn(1, 2, length, 11)
        with Largest() as seen:
            blockwise.run(Call.of(q, q, q, mask=hw.causal(), need=WORDS))
        most.append(seen.numbers)
    assert most[1] <= max(blockwise.BLOCK_SCORES, blockwise.MIN_ROWS * 2 * 2063)
    assert most[0] <= blockwise.BLOCK_SCORES


def test_case_42_chosen_rows_are_queries_at_an_offset():
    q, k, v = (t.detach() for t in tensors(7, 7, dtype=torch.float32))
    whole = hw.attend(q, k, v, mask=hw.causal(), need=["weights", "distance"])
    chosen = hw.attend(q[:, :, 3:5], k, v, mask=hw.causal(), offset=3, need=["weights", "distance"])
    call = Call.of(q, k, v, mask=hw.causal())
    accept(chosen.weights, whole.weights[:, :, 3:5], reference(call).weights[:, :, 3:5])
    accept(
        chosen.distance,
        whole.distance[:, :, 3:5],
        formulas(call, torch.float64)["distance"][:, :, 3:5],
    )


@pytest.mark.parametrize("word", NEEDS)
@pytest.mark.parametrize("engine", [eager, blockwise, sdpa, tiled], ids=lambda engine: engine.NAME)
def test_case_42_what_is_asked_for_comes_or_is_refused(engine, word):
    call = Call.of(*tensors(dtype=torch.float32), need=[word])
    if list(engine.why_not(call)):
        with pytest.raises(EngineRefused, match=word):
            hw.attend(call.q, call.k, call.v, need=[word], engine=engine.NAME)
        return
    result = engine.run(call)
    given = {name for name in NEEDS if getattr(result, name) is not None}
    assert given == {word}


@pytest.mark.parametrize("word", WORDS)
def test_flex_refuses_statistics(word):
    call = Call.of(*tensors(dtype=torch.float32), need=[word])
    assert f"it does not return {word}" in [reason.en for reason in list(flex.why_not(call))]


def test_every_word_is_a_field_and_every_statistic_a_word():
    assert {field.name for field in fields(Result)} == {"output", *NEEDS}
    assert ("weights", "logsumexp", *WORDS) == NEEDS
    assert plan.NEEDS == NEEDS
    with pytest.raises(BadValue, match=r"need: unknown 'entropies'.*entropy"):
        hw.attend(*tensors(), need=["entropies"])


def test_rows_says_why_not():
    q, k, v = tensors(dtype=torch.float32)
    for message, given, more in (
        ("it never stores all Lq x Lk weights", (q, k, v), {"need": ["weights"]}),
        ("a size is 0", (q[:, :, :0], k, v), {}),
        ("hold no numbers", [t.to("meta") for t in (q, k, v)], {}),
    ):
        with pytest.raises(EngineRefused, match=message):
            hw.attend(*given, **more, engine="rows")


def test_rows_leaves_transforms_to_eager():
    q, k, v = (t.detach() for t in tensors(dtype=torch.float32))

    def output(queries, engine):
        return hw.attend(queries, k, v, need=["entropy"], engine=engine).entropy.sum()

    with pytest.raises(EngineRefused, match=r"torch\.func"):
        torch.func.grad(output)(q, "rows")
    leaf = q.clone().requires_grad_()
    expected = torch.autograd.grad(output(leaf, "eager"), leaf)[0]
    accept(torch.func.grad(output)(q, "auto"), expected, expected.double())


@pytest.mark.parametrize("grad", [False, True])
def test_case_41_a_large_call_stays_off_the_weights_and_plan_says_so(grad):
    q = torch.randn(1, 8, 521, 3, requires_grad=grad)
    assert hw.plan(q, q, q, need=["entropy"]).engine == "rows"
    assert hw.plan(q, q, q, need=["logsumexp"]).engine == "sdpa"
    small = q[:, :, :7]
    assert hw.plan(small, small, small, need=["entropy"]).engine == "eager"
    planned = hw.plan(q, q, q, need=["weights", "entropy"])
    assert planned.engine == "eager"
    assert "never stores all Lq x Lk weights" in planned.refused["rows"][0].en
    assert [reason.en for reason in planned.refused["sdpa"]] == [
        "it does not return entropy",
        "it does not return weights",
    ]
    assert hw.plan(q, q, q).engine == "sdpa"
    assert hw.plan(q, q, q, dropout=0.5, need=["entropy"]).engine == "rows"


@pytest.mark.parametrize("sizes", [(0, 7, 2), (5, 0, 2), (5, 7, 0), (0, 0, 2)])
def test_case_51_empty_sizes_give_empty_or_zero_statistics(sizes):
    queries, keys, batch = sizes
    inputs = tensors(queries, keys, batch=batch, dtype=torch.float32)
    result = hw.attend(*inputs, mask=hw.causal(), need=WORDS)
    for word in WORDS:
        value = getattr(result, word)
        assert value.shape == (batch, HEADS, keys if word == "received" else queries)
        assert not value.any()


def test_statistics_are_of_the_weights_before_dropout():
    q, k, v = tensors(dtype=torch.float32)
    dropped = hw.attend(q, k, v, dropout=0.5, need=WORDS)
    plain = hw.attend(q, k, v, need=WORDS)
    assert all(torch.equal(getattr(dropped, word), getattr(plain, word)) for word in WORDS)
    assert not torch.equal(dropped.output, plain.output)


def test_what_the_statistics_are_together():
    """Each query that sees a key gives 1, and its entropy is at most log of how many it sees."""
    q, k, v = (t.detach() for t in tensors(7, 5, dtype=torch.float64))
    mask = hw.causal() & hw.padding([5, 2])
    result = hw.attend(q, k, v, mask=mask, need=WORDS, engine="rows")
    allowed = Call.of(q, k, v, mask=mask).allowed().expand(2, HEADS, 7, 5)
    seeing = allowed.any(-1).sum(-1).double()
    accept(result.received.sum(-1), seeing, seeing)
    count = allowed.sum(-1)
    assert (result.entropy.exp().floor() <= count.clamp(min=1)).all()
    assert ((1 / result.largest).floor() <= count)[count > 0].all()
