"""Known faults of PyTorch's fused CPU kernel: the kernel still has them, and headwise does not.

The first half of each test fails if PyTorch corrects its kernel; the workaround in headwise can
then be removed. Measured with PyTorch 2.13.
"""

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import headwise as hw
from headwise.call import Call, Result
from headwise.engines import blockwise, eager, kernel, sdpa, tiled
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept, judge
from tests.examples import accept_with_gradients, identity, tensors

pytestmark = pytest.mark.skipif(
    not kernel.fused(torch.zeros(1)), reason="this PyTorch has no fused kernel for a CPU"
)
ENGINES = [pytest.param(engine, id=engine.NAME) for engine in (sdpa, tiled)]
FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"
B, H, L, S, D = 2, 3, 37, 41, 16


def inputs(dtype=torch.float32):
    return [torch.randn(B, H, n, D, dtype=dtype) for n in (L, S, S)]


def names(run) -> set[str]:
    """The operators that a run calls."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return {event.name for event in seen.events()}


def test_a_float32_mask_makes_float64_silently_wrong_there():
    q, k, v = inputs(torch.float64)
    added = torch.randn(1, 1, L, S)
    call = Call.of(q, k, v, mask=hw.from_tensor(added[0, 0], "q k"))
    oracle, plain = reference(call).output, reference(call, torch.float32).output
    wrong = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
    assert not judge(wrong.float(), plain, oracle).accepted
    for engine in (sdpa, tiled):
        accept(engine.run(call).output, reference(call).output, oracle)


SLOW = {
    "three axes": (lambda q, k, v: ([x.flatten(0, 1) for x in (q, k, v)], None)),
    "a mask of three axes": (lambda q, k, v: ((q, k, v), torch.zeros(1, L, S))),
    "a learned mask": (lambda q, k, v: ((q, k, v), torch.zeros(1, 1, L, S, requires_grad=True))),
    "values of another width": (lambda q, k, v: ((q, k, v[..., :11]), None)),
}


@pytest.mark.parametrize("kind", SLOW)
def test_the_slow_path_is_taken_without_a_word_there(kind):
    given, mask = SLOW[kind](*inputs())
    assert FUSED not in names(lambda: F.scaled_dot_product_attention(*given, attn_mask=mask))
    q, k, v = inputs()
    assert FUSED in names(lambda: F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("kind", ["a learned mask", "values of another width"])
def test_the_tiled_engine_stays_on_the_fused_kernel(kind):
    q, k, v = inputs()
    mask = None
    if kind == "a learned mask":
        mask = hw.from_tensor(torch.zeros(L, S, requires_grad=True), "q k")
    else:
        v = v[..., :11]
    assert FUSED in names(lambda: tiled.run(Call.of(q, k, v, mask=mask)))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_logsumexp_of_a_blind_row_is_0_there_and_minus_infinity_here(engine):
    q, k, v = inputs()
    allowed = torch.ones(L, S, dtype=torch.bool)
    allowed[5] = False
    added = torch.zeros(L, S).masked_fill(~allowed, -torch.inf)[None, None]
    output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, attn_mask=added
    )
    assert not output[:, :, 5].any()
    assert not sums[:, :, 5].any()
    call = Call.of(q, k, v, mask=hw.from_tensor(allowed, "q k"), need=["logsumexp"])
    for reason in engine.why_not(call):
        pytest.skip(reason.en)
    result, oracle = engine.run(call), reference(call)
    assert (result.logsumexp[:, :, 5] == -torch.inf).all()
    accept(result.logsumexp, reference(call, torch.float32).logsumexp, oracle.logsumexp)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_nan_in_a_masked_key_leaks_there_and_not_here(engine):
    q, k, v = inputs()
    keep = torch.arange(S) < 29
    clean = engine.run(Call.of(q, k, v, mask=hw.padding(keep.expand(B, -1)))).output
    k[:, :, 29:], v[:, :, 29:] = torch.nan, torch.nan
    leaked = F.scaled_dot_product_attention(q, k, v, attn_mask=keep.expand(1, 1, L, S))
    assert leaked.isnan().any()
    dirty = engine.run(Call.of(q, k, v, mask=hw.padding(keep.expand(B, -1)))).output
    assert torch.equal(clean, dirty)


def test_there_is_no_second_derivative_there_and_one_here():
    q, k, v = (x.requires_grad_() for x in inputs())
    output = F.scaled_dot_product_attention(q, k, v)
    (first,) = torch.autograd.grad(output.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative"):
        torch.autograd.grad(first.square().sum(), q)
    ours = hw.attend(q, k, v)
    (first,) = torch.autograd.grad(ours.square().sum(), q, create_graph=True)
    second = torch.autograd.grad(first.square().sum(), q)[0]
    call = Call.of(q, k, v)

    def of(output):
        (one,) = torch.autograd.grad(output.square().sum(), q, create_graph=True)
        return torch.autograd.grad(one.square().sum(), q)[0]

    accept(second, of(reference(call, torch.float32).output), of(reference(call).output))


@pytest.mark.parametrize("scale", [-1.0, -0.3, 0.0])
@pytest.mark.parametrize("engine", ["auto", "sdpa", "tiled", "rows", "eager"])
@pytest.mark.parametrize("mask", [hw.causal(), hw.full(), hw.window(3, 0)], ids=identity)
def test_a_scale_that_is_not_positive_hides_as_any_other(mask, engine, scale):
    """PyTorch's own triangle hides by -inf before it scales: with such a scale it gives NaN."""
    ones = [torch.ones(1, 1, 3, D) for _ in "qkv"]
    assert F.scaled_dot_product_attention(*ones, is_causal=True, scale=scale).isnan().any()
    q, k, v = tensors(13, 13, dtype=torch.float32)
    call = Call.of(q, k, v, mask=mask, scale=scale)
    output = hw.attend(q, k, v, mask=mask, scale=scale, engine=engine)
    accept_with_gradients(call, Result(output))


@pytest.mark.parametrize("engine", [blockwise, eager], ids=lambda engine: engine.NAME)
def test_scores_in_the_thousands_have_their_gradients_from_kept_weights(engine):
    """The fused backward makes weights of a float32 logsumexp, which has few digits left there."""
    q, k, v = (t.mul(100).requires_grad_() for t in inputs())
    call = Call.of(q, k, v)
    accept_with_gradients(call, engine.run(call))
    exact, plain = reference(call).output, reference(call, torch.float32).output
    found = F.scaled_dot_product_attention(q, k, v)
    of_v = [torch.autograd.grad(each.sum(), v)[0] for each in (found, plain, exact)]
    assert not judge(*of_v).accepted
