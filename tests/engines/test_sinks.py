"""Case 53: attention sinks, an additional logit for each head in the softmax, on every engine."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import headwise as hw
from headwise.call import Call, Result
from headwise.engines import best, blockwise, eager, flex, lsh, sdpa, tiled
from headwise.engines.tiled.encoding import encode
from headwise.engines.tiled.operator import operator
from headwise.errors import BadType, BadValue
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests import roundings
from tests.examples import (
    HEADS,
    every_mask,
    every_position,
    identity,
    named,
    rounded_otherwise,
    tensors,
)

HERE = [pytest.param(engine, id=engine.NAME) for engine in (tiled, blockwise, sdpa, eager)]
with torch.random.fork_rng():  # the same masks, whatever else is collected
    torch.manual_seed(0)
    MASKS = every_mask()

NEEDS = ("logsumexp", "entropy", "received", "distance", "largest")


def logits(dtype=torch.float32):
    """A sink for each head: strong, weak, one that is 0 and one that is none."""
    values = [3.0, -2.0, 0.0, -torch.inf, 0.7, 1.1]
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def hold(call, result):
    """Assert that output, logsumexp and every gradient are the reference's.

    The gradient of the output is the exact output, so that the gradient of a sink, -p |O|² summed
    over all rows, does not cancel: what would be left is noise.
    """
    oracle, plain = reference(call), reference(call, call.q.dtype)
    of_sums = None if result.logsumexp is None else torch.rand_like(oracle.logsumexp)

    def numbers(each, of):
        total = (each.output.double() * oracle.output.detach()).sum()
        if of_sums is not None:
            finite = each.logsumexp.masked_fill(each.logsumexp == -torch.inf, 0)
            total = total - (finite.double() * of_sums).sum()
        found = torch.autograd.grad(total, [of.q, of.k, of.v, of.sinks, *of.position.parameters()])
        kept = [each.output] if of_sums is None else [each.output, each.logsumexp]
        if call.q.dtype != torch.bfloat16:
            return [*kept, *found]
        # six numbers alone compare how lucky a rounding was: with v's they are some hundred
        q, k, v, sinks, *rest = (each.float() for each in found)
        joined = torch.cat((v.flatten(), sinks))
        return [*kept, q.bfloat16(), k.bfloat16(), joined.bfloat16(), *rest]

    def gradients(run):
        other = rounded_otherwise(call, run)
        return numbers(reference(other, call.q.dtype), other)

    roundings.hold(*(numbers(each, call) for each in (result, plain, oracle)), gradients)


def test_the_reference_is_a_softmax_with_one_more_column():
    """By hand: scores 0 and ln 3, sink ln 4, so that weights are 1/8 and 3/8."""
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    k = torch.tensor([1.0, 3.0], dtype=torch.float64).log().view(1, 1, 2, 1)
    v = torch.tensor([8.0, 16.0], dtype=torch.float64).view(1, 1, 2, 1)
    sinks = torch.tensor([4.0], dtype=torch.float64).log()
    steps = reference(Call.of(q, k, v, scale=1.0, sinks=sinks), torch.float64)
    exact = torch.tensor([[[[0.125, 0.375]]]], dtype=torch.float64)
    accept(steps.weights, exact.float(), exact)
    seven = torch.tensor([[[[7.0]]]], dtype=torch.float64)
    accept(steps.output, seven.float(), seven)
    steps = reference(Call.of(q, k, v, scale=1.0, sinks=sinks), torch.float32)
    eight = torch.tensor([[[8.0]]], dtype=torch.float64).log()
    accept(steps.logsumexp, eight.float(), eight)


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mask", MASKS, ids=identity)
def test_output_and_gradients_are_those_of_the_oracle(engine, dtype, mask):
    call = Call.of(*tensors(dtype=dtype), mask=mask, sinks=logits(), need=["logsumexp"])
    for reason in engine.why_not(call):
        pytest.skip(reason.en)
    hold(call, engine.run(call))


@pytest.mark.parametrize("engine", [pytest.param(e, id=e.NAME) for e in (tiled, sdpa)])
@pytest.mark.parametrize(
    "mask",
    [
        hw.full(),
        hw.causal(),
        hw.window(20, 9),
        hw.window(0, 0),
        hw.window(9, 9) | hw.global_tokens([0, 50]),
        hw.causal() & hw.padding([100, 0]),
    ],
    ids=identity,
)
@pytest.mark.parametrize("need", [(), ("logsumexp",)])
def test_at_the_size_of_some_blocks(engine, mask, need):
    call = Call.of(*tensors(131, 131, dtype=torch.float32), mask=mask, sinks=logits(), need=need)
    hold(call, engine.run(call))


@pytest.mark.parametrize("position", every_position(), ids=named)
@pytest.mark.parametrize("engine", [pytest.param(e, id=e.NAME) for e in (tiled, blockwise, eager)])
def test_with_every_position(engine, position):
    call = Call.of(
        *tensors(37, 67, dtype=torch.float32),
        mask=hw.window(20, 9),
        position=position,
        sinks=logits(),
    )
    hold(call, engine.run(call))


@pytest.mark.parametrize("causal", [False, True])
def test_under_lsh(causal):
    """Under a mask of chunks, alone and with another."""
    q, k, v = (torch.randn(2, HEADS, 67, 8, requires_grad=True) for _ in range(3))
    mask = hw.lsh(3, chunk=8, seed=1)
    call = Call.of(q, k, v, mask=mask & hw.causal() if causal else mask, sinks=logits())
    assert not list(lsh.why_not(Call.of(q, k, v, mask=call.mask, sinks=call.sinks)))
    hold(call, lsh.run(call))
    with torch.no_grad():
        sums = lsh.run(Call.of(q, k, v, mask=call.mask, sinks=call.sinks, need=["logsumexp"]))
    accept(sums.logsumexp, reference(call, torch.float32).logsumexp, reference(call).logsumexp)


@pytest.mark.parametrize("grad", [False, True])
def test_weights_and_what_is_measured_on_them(grad):
    q, k, v = tensors(dtype=torch.float32)
    mask = hw.causal() & hw.padding([5, 0])
    with torch.set_grad_enabled(grad):
        one = eager.run(Call.of(q, k, v, mask=mask, sinks=logits(), need=("weights", *NEEDS)))
        other = blockwise.run(Call.of(q, k, v, mask=mask, sinks=logits(), need=NEEDS))
    call = Call.of(q, k, v, mask=mask, sinks=logits())
    oracle, plain = reference(call), reference(call, torch.float32)
    accept(one.weights, plain.weights, oracle.weights)
    assert (one.weights[:, [0, 1, 2, 4, 5]].sum(-1) < 1).all()
    w = oracle.weights
    apart = (torch.arange(5)[:, None] + 2 - torch.arange(7)).abs().double()
    exact = {
        "entropy": -torch.special.xlogy(w, w).sum(-1),
        "received": w.sum(-2),
        "distance": (w * apart).sum(-1),
        "largest": w.amax(-1),
    }
    for name, right in exact.items():
        accept(getattr(one, name), right.float(), right)
        accept(getattr(other, name), right.float(), right)


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize("mask", [hw.full(), hw.causal() & hw.padding([13, 0])], ids=identity)
def test_a_sink_of_minus_infinity_is_none_to_the_last_bit(engine, mask):
    q, k, v = tensors(17, 17, dtype=torch.float32)
    nothing = torch.full((HEADS,), -torch.inf, requires_grad=True)
    need = ["logsumexp"]
    with_one = engine.run(Call.of(q, k, v, mask=mask, sinks=nothing, need=need))
    without = engine.run(Call.of(q, k, v, mask=mask, need=need))
    assert torch.equal(with_one.output, without.output)
    assert torch.equal(with_one.logsumexp, without.logsumexp)
    *own, of_sinks = torch.autograd.grad(with_one.output.sum(), (q, k, v, nothing))
    assert not of_sinks.any()
    call = Call.of(q, k, v, mask=mask)
    results = reference(call).output, reference(call, torch.float32).output
    oracle, plain = (torch.autograd.grad(each.sum(), (q, k, v)) for each in results)
    for x, n, o in zip(own, plain, oracle, strict=True):
        accept(x, n, o)


@pytest.mark.parametrize("engine", HERE)
def test_a_blind_row_gives_zero_and_its_logsumexp_is_the_sink(engine):
    q, k, v = tensors(7, 5, dtype=torch.float32)
    sinks = logits()
    result = engine.run(Call.of(q, k, v, mask=hw.causal(), sinks=sinks, need=["logsumexp"]))
    assert not result.output[:, :, :2].any()
    assert torch.equal(result.logsumexp[0, :, 0], sinks)
    grads = torch.autograd.grad(result.output.square().sum(), (q, k, v, sinks))
    assert all(grad.isfinite().all() for grad in grads)
    assert not grads[0][:, :, :2].any()


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("engine", ["auto", "tiled", "sdpa", "eager"])
@pytest.mark.parametrize(
    "mask", [hw.full(), hw.causal() & hw.padding([11, 0]), hw.window(1, 2)], ids=identity
)
def test_first_and_second_derivatives(check, engine, mask):
    q, k, v = (torch.randn(2, 3, 11, 4).double() for _ in range(3))
    sinks = torch.tensor([0.4, -1.0, 2.0], dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (q, k, v, sinks)]

    def results(*given):
        found = hw.attend(*given[:3], mask=mask, sinks=given[3], need=["logsumexp"], engine=engine)
        return found.output, found.logsumexp

    assert check(results, inputs, fast_mode=True)


def test_second_derivatives_are_finite_where_a_sink_is_none_and_a_row_blind():
    q, k, v = tensors(7, 5)
    sinks = logits(torch.float64)
    for engine in (tiled, sdpa, eager):
        output = engine.run(Call.of(q, k, v, mask=hw.causal(), sinks=sinks)).output
        inputs = (q, k, v, sinks)
        first = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(each.square().sum() for each in first), inputs)
        assert all(each.isfinite().all() for each in second)


@pytest.mark.parametrize("mask", [hw.window(5, 9), hw.padding([30, 0]) & hw.causal()], ids=identity)
def test_the_compiled_operator_takes_them(mask):
    q, k, v = (torch.randn(2, HEADS, 37, 16, requires_grad=True) for _ in range(3))
    call = Call.of(q, k, v, mask=mask, sinks=logits())
    given = (q, k, v, *encode(call.mask), call.shape.offset, call.scale, call.sinks)
    found = torch.library.opcheck(operator, given)
    assert set(found.values()) == {"SUCCESS"}
    hold(call, Result(operator(*given)[0]))


def test_zero_is_the_softmax_off_by_one():
    """Miller 2023: exp(s) / (1 + sum exp(s)), here written out."""
    q, k, v = (t.detach() for t in tensors(groups=HEADS))
    scores = q @ k.mT * 11**-0.5
    exact = scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))
    found = hw.attend(q, k, v, sinks=torch.zeros(HEADS), need=["weights"])
    accept(found.weights, exact.float(), exact)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_transforms_of_torch_func():
    q, k, v = (t.detach() for t in tensors())
    sinks = logits(torch.float64).detach()

    def ours(x):
        return hw.attend(q, k, v, sinks=x)

    def exact(x):
        return reference(Call.of(q, k, v, sinks=x)).output

    tangent = torch.ones_like(sinks)
    finite = sinks.masked_fill(sinks == -torch.inf, 0.0)
    got, right = (torch.func.jvp(f, (finite,), (tangent,))[1] for f in (ours, exact))
    accept(got, right.float(), right)


def test_flex_and_sdpa_with_dropout_refuse_and_auto_finds_another():
    q, k, v = tensors(dtype=torch.float32)
    assert any(
        "not support sinks" in r.en for r in list(flex.why_not(Call.of(q, k, v, sinks=logits())))
    )
    dropped = Call.of(q, k, v, sinks=logits(), dropout=0.5)
    assert any("it supports sinks on a CPU only" in r.en for r in list(sdpa.why_not(dropped)))
    assert best(dropped) is eager
    assert best(Call.of(q, k, v, sinks=logits())) is sdpa
    long = torch.zeros(1, HEADS, 2048, 4)
    assert best(Call.of(long, long, long, mask=hw.window(9, 9), sinks=logits())) is tiled
    assert best(Call.of(long, long, long, sinks=logits(), need=["entropy"])) is blockwise


@pytest.mark.parametrize("door", [hw.attend, hw.plan])
@pytest.mark.parametrize(
    ("sinks", "error", "message"),
    [
        ([0.0], BadType, r"sinks: expected a floating point tensor \(H,\) or None, got list; use"),
        (torch.zeros(HEADS).long(), BadType, "sinks: expected .*, got torch.int64"),
        (
            torch.zeros(1),
            BadValue,
            r"sinks: expected one logit per head, \(6,\) .*use sinks.expand",
        ),
        (torch.zeros(1, HEADS), BadValue, r"sinks: expected one logit per head"),
        (torch.zeros(HEADS, device="meta"), BadValue, r"got \(6,\) on meta"),
    ],
)
def test_wrong_sinks_are_named_with_the_way_out(door, sinks, error, message):
    with pytest.raises(error, match=message) as caught:
        door(*tensors(), sinks=sinks)
    assert caught.value.text.zh != caught.value.text.en
