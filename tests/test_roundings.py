"""Repeated plain runs accept a rounding error, but no mistake."""

import pytest
import torch

import headwise as hw
from headwise.call import Call, Result
from headwise.engines import eager
from headwise.reference import reference
from headwise.verify.oracle.tolerance import judge
from tests.examples import accept_with_gradients, tensors
from tests.nn.oracle import Truth, inputs
from tests.roundings import RUNS, hold, nudged


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_nudge_is_one_rounding_at_most(dtype):
    x = torch.randn(10_007, dtype=dtype, requires_grad=True)
    one, other = nudged(x, 0), nudged(x, 1)
    assert one.is_leaf
    assert one.requires_grad
    moved = one != x
    assert 0.2 < moved.double().mean() < 0.8
    apart = (one.double() - x.double()).abs()
    assert (apart <= torch.finfo(dtype).eps * x.double().abs()).all()
    assert not torch.equal(one, other)
    assert torch.equal(one, nudged(x, 0))


def test_an_unlucky_rounding_is_accepted_and_a_large_error_is_not():
    exact = torch.ones(3, dtype=torch.float64)
    near = exact.float() + 1e-7
    for far, good in ((1e-5, True), (1e-3, False)):
        runs = iter(range(RUNS))

        def again(run, runs=runs):
            assert run == next(runs)
            return [exact.float() + (5e-6 if run == 3 else 0)]

        if good:
            hold([exact.float() + far], [near], [exact], again)
            assert next(runs) == 4  # no more runs than it takes
        else:
            with pytest.raises(AssertionError, match=r"max\|X-O\| = 1.000e-03"):
                hold([exact.float() + far], [near], [exact], again)


@pytest.mark.parametrize("leaf", ["q", "k", "v"])
def test_a_gradient_wrong_by_a_ten_thousandth_is_rejected(leaf):
    call = Call.of(*tensors(67, 131, dtype=torch.float32))
    accept_with_gradients(call, eager.run(call))

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, grad):
            return grad * 1.0001

    wrong = {name: getattr(call, name) for name in "qkv"}
    wrong[leaf] = Wrong.apply(wrong[leaf])
    with pytest.raises(AssertionError):
        accept_with_gradients(call, Result(reference(Call.of(**wrong), torch.float32).output))


def test_a_module_wrong_by_a_ten_thousandth_is_rejected():
    module = hw.MultiheadAttention(12, 3, batch_first=True)
    given = inputs(module)
    output, _ = module(*given)
    truth = Truth(module, given)
    truth.hold(output, None)
    with pytest.raises(AssertionError):
        truth.hold(output * 1.0001, None)
    late = output.detach() + 1.0001 * (output - output.detach())  # only its gradients are
    with pytest.raises(AssertionError, match=r"max\|X-O\|"):
        truth.hold(late, None)


def test_both_bounds_must_hold():
    exact = torch.ones(1000, dtype=torch.float64)
    plain, one_far, all_near = exact.clone(), exact.clone(), exact.clone()
    plain[0] += 1e-3
    one_far[0] += 1e-2  # 10 times the largest error of the plain run
    all_near += 1.9e-3  # at most twice the largest, in every entry
    assert judge(plain, plain, exact).accepted
    assert not judge(one_far, plain, exact).accepted
    assert not judge(all_near, plain, exact).accepted
    spread = exact + 1e-3
    assert not judge(one_far, spread, exact).accepted  # the mean square alone would pass
