"""Every engine compared with the oracle: the output and all gradients, for every mask and dtype."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import headwise as hw
from headwise.call import Call
from headwise.engines import ENGINES, can_run, eager, flex, lsh, sdpa
from headwise.errors import EngineRefused
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import HEADS, accept_with_gradients, every_mask, identity, tensors

HERE = [engine for engine in ENGINES if engine not in (flex, lsh)]
"""`flex` compiles for seconds and takes no gradient on a CPU: its tests are in test_flex.py. `lsh`
runs one mask only: its tests are in test_lsh.py."""

BY_NAME = [pytest.param(engine, id=engine.NAME) for engine in HERE]


DTYPES, GROUPS = (torch.float32, torch.float64, torch.bfloat16), (1, 3, HEADS)


@pytest.mark.parametrize(
    ("number", "turn"),
    [
        pytest.param(number, turn, marks=() if turn == number % 3 else pytest.mark.slow)
        for number in range(len(every_mask()))
        for turn in range(3)
    ],
)
@pytest.mark.parametrize("dtype", range(3), ids=map(str, DTYPES))
def test_output_and_gradients_are_those_of_the_oracle(number, turn, dtype):
    """Every mask with every dtype and every number of groups; the slow suite has all triples."""
    mask, groups = every_mask()[number], GROUPS[(turn + dtype) % 3]
    call = Call.of(*tensors(groups=groups, dtype=DTYPES[dtype]), mask=mask)
    able = [engine for engine in HERE if can_run(engine, call)]
    assert {"eager", "rows", "tiled"} <= {engine.NAME for engine in able}
    accept_with_gradients(call, *(engine.run(call) for engine in able))


@pytest.mark.parametrize("engine", BY_NAME)
@pytest.mark.parametrize("sizes", [(7, 5), (1, 7), (7, 1), (1, 1), (7, 7)])
@pytest.mark.parametrize("make", [hw.full, hw.causal, lambda: hw.window(1, 1)])
def test_every_pair_of_lengths(engine, sizes, make):
    call = Call.of(*tensors(*sizes, dtype=torch.float32), mask=make())
    accept_with_gradients(call, engine.run(call))


@pytest.mark.parametrize("engine", BY_NAME)
@pytest.mark.parametrize("offset", [0, 2, 5, -3])
def test_an_offset_is_honoured(engine, offset):
    call = Call.of(*tensors(dtype=torch.float32), mask=hw.causal(), offset=offset)
    accept_with_gradients(call, engine.run(call))


@pytest.mark.parametrize("engine", BY_NAME)
def test_a_scale_is_honoured(engine):
    call = Call.of(*tensors(dtype=torch.float32), scale=0.7)
    accept_with_gradients(call, engine.run(call))


@pytest.mark.parametrize("mask", every_mask(), ids=identity)
def test_weights_and_logsumexp_are_those_of_the_oracle(mask):
    q, k, v = tensors(dtype=torch.float32)
    call = Call.of(q, k, v, mask=mask, need=["weights", "logsumexp"])
    got, oracle, plain = eager.run(call), reference(call), reference(call, torch.float32)
    accept(got.weights, plain.weights, oracle.weights)
    accept(got.logsumexp, plain.logsumexp, oracle.logsumexp)
    blind = ~oracle.allowed.any(-1)
    assert torch.equal(got.weights.sum(-1) == 0, blind)
    assert torch.equal(got.logsumexp == -torch.inf, blind)


@pytest.mark.parametrize("engine", BY_NAME)
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "make", [lambda: hw.padding([3, 0]), lambda: hw.padding([3, 0]) & hw.causal()]
)
def test_padded_keys_never_touch_the_result_or_a_gradient(engine, junk, make):
    q, k, v = tensors(dtype=torch.float32)
    dirty_k, dirty_v = k.detach().clone(), v.detach().clone()
    for sample, length in enumerate((3, 0)):
        dirty_k[sample, :, length:] = junk
        dirty_v[sample, :, length:] = junk
    clean = engine.run(Call.of(q, k, v, mask=make())).output
    leaves = [q, dirty_k.requires_grad_(), dirty_v.requires_grad_()]
    dirty = engine.run(Call.of(*leaves, mask=make())).output
    assert torch.equal(clean, dirty)
    expected = torch.autograd.grad(clean.sum(), (q, k, v))
    for got, want in zip(torch.autograd.grad(dirty.sum(), leaves), expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("engine", BY_NAME)
def test_a_real_nan_is_not_hidden(engine):
    q, k, v = (t.detach() for t in tensors(7, 7, dtype=torch.float32))
    v[0, 0, 3, 0] = torch.nan
    output = engine.run(Call.of(q, k, v, mask=hw.window(0, 0))).output
    assert output[0, 0, 3, 0].isnan()
    assert engine.run(Call.of(q, k, v)).output[0, 0, :, 0].isnan().all()


@pytest.mark.parametrize("engine", BY_NAME)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blind_rows_are_zero_with_zero_gradients(engine, dtype):
    q, k, v = tensors(7, 5, dtype=dtype)
    output = engine.run(Call.of(q, k, v, mask=hw.causal())).output
    assert not output[:, :, :2].any()
    grads = torch.autograd.grad(output.float().square().sum(), (q, k, v))
    assert all(grad.isfinite().all() for grad in grads)
    assert not grads[0][:, :, :2].any()


@pytest.mark.parametrize("engine", BY_NAME)
def test_causal_outputs_before_a_changed_token_are_bit_equal(engine):
    q, k, v = (t.detach() for t in tensors(7, 7, dtype=torch.float32))
    before = engine.run(Call.of(q, k, v, mask=hw.causal())).output
    changed = [t.clone() for t in (q, k, v)]
    for t in changed:
        t[:, :, 4] += 1
    after = engine.run(Call.of(*changed, mask=hw.causal())).output
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert not torch.equal(before[:, :, 4:], after[:, :, 4:])


@pytest.mark.parametrize("engine", BY_NAME)
def test_permuting_the_batch_permutes_the_output(engine):
    q, k, v = (t.detach() for t in tensors(dtype=torch.float32, batch=3))
    order = torch.tensor([2, 0, 1])
    output = engine.run(Call.of(q, k, v, mask=hw.padding([3, 7, 1]))).output
    moved = engine.run(Call.of(q[order], k[order], v[order], mask=hw.padding([1, 3, 7]))).output
    assert torch.equal(output[order], moved)


@pytest.mark.parametrize("mask", every_mask(3, 5), ids=identity)
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_eager_has_every_derivative(mask, check):
    q, k = torch.randn(2, 6, 3, 2).double(), torch.randn(2, 3, 5, 2).double()
    v = torch.randn(2, 3, 5, 1).double()

    def output(*qkv):
        return eager.run(Call.of(*qkv, mask=mask)).output

    assert check(output, [t.requires_grad_() for t in (q, k, v)], fast_mode=True)


@pytest.mark.parametrize("engine", BY_NAME)
def test_dropout_drops_whole_weights_and_scales_the_rest(engine):
    """With the identity as values the output is the dropped weights themselves."""
    q, k = torch.randn(2, 6, 5, 11), torch.randn(2, 3, 7, 11)
    v = torch.eye(7).expand(2, 3, 7, 7)
    for reason in engine.why_not(Call.of(q, k, v, dropout=0.5)):
        pytest.skip(reason.en)
    dropped = engine.run(Call.of(q, k, v, dropout=0.5)).output
    kept = dropped != 0
    call = Call.of(q, k, v)
    accept(
        dropped[kept] / 2,
        reference(call, torch.float32).weights[kept],
        reference(call).weights[kept],
    )
    assert 0 < kept.float().mean() < 1


@pytest.mark.parametrize("engine", BY_NAME)
def test_dropout_follows_the_seed(engine):
    q, k, v = tensors(dtype=torch.float32)
    for reason in engine.why_not(Call.of(q, k, v, dropout=0.5)):
        pytest.skip(reason.en)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(engine.run(Call.of(q, k, v, dropout=0.5)).output)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_weights_are_those_before_dropout():
    q, k, v = tensors(dtype=torch.float32)
    dropped = eager.run(Call.of(q, k, v, dropout=0.5, need=["weights"]))
    assert torch.equal(dropped.weights, eager.run(Call.of(q, k, v, need=["weights"])).weights)


@pytest.mark.parametrize("sizes", [(0, 7, 2), (5, 0, 2), (5, 7, 0), (0, 0, 2)])
def test_case_51_empty_sizes_give_empty_or_zero(sizes):
    queries, keys, batch = sizes
    q, k, v = tensors(queries, keys, batch=batch, dtype=torch.float32)
    for mask in (None, hw.causal(), hw.window(1, 1)):
        result = hw.attend(q, k, v, mask=mask, need=["weights", "logsumexp"])
        assert result.output.shape == (batch, 6, queries, 13)
        assert not result.output.any()
        assert not reference(Call.of(q, k, v, mask=mask)).output.any()
        hw.attend(q, k, v, mask=mask).sum().backward()


def test_no_engine_writes_into_the_callers_tensors():
    q, k, v = (t.detach() for t in tensors(dtype=torch.float32))
    before = [t.clone() for t in (q, k, v)]
    for engine in HERE:
        engine.run(Call.of(q, k, v, mask=hw.padding([3, 0]) & hw.causal()))
    assert all(map(torch.equal, before, (q, k, v)))


def test_every_reason_is_given_not_the_first():
    q, k, v = tensors(0, 7, dtype=torch.bfloat16)
    mask = hw.from_tensor(torch.randn(0, 7), "q k")
    call = Call.of(q, k, v, mask=mask, need=["weights", "logsumexp"])
    assert len(list(sdpa.why_not(call))) == 4
    with pytest.raises(EngineRefused, match=r"logsumexp; .*weights; a size is 0; .*round the bias"):
        hw.attend(q, k, v, mask=mask, need=["weights", "logsumexp"], engine="sdpa")
