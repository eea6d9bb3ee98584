"""The tiled engine against the oracle at sizes around its blocks, on every path it has."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import headwise as hw
from headwise.call import Call
from headwise.engines import best, kernel, sdpa, tiled
from headwise.engines.kernel import BackwardInputs
from headwise.engines.tiled import backward, batched_kernel, forward
from headwise.engines.tiled.batched_kernel import BatchLayout
from headwise.engines.tiled.decompose import parts
from headwise.engines.tiled.eligibility import nonempty_share
from headwise.errors import EngineRefused
from headwise.masks import Mask, Tile
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import (
    DIM,
    HEADS,
    VALUE_DIM,
    accept_with_gradients,
    every_mask,
    every_position,
    identity,
    named,
    tensors,
)


@pytest.fixture(params=["fused", "plain"])
def path(request, monkeypatch):
    """The fused kernel, or the products that stand in where PyTorch does not have it."""
    if request.param == "plain":
        monkeypatch.setattr(kernel, "fused", lambda _: False)
    elif not kernel.fused(torch.zeros(1)):
        pytest.skip("this PyTorch has no fused kernel for a CPU")
    return request.param


@pytest.fixture
def calls(monkeypatch):
    """How often the fused kernel is called, forward and backward."""
    made = {"forward": 0, "backward": 0}

    def counting(name, function):
        def counted(*arguments, **words):
            made[name] += 1
            return function(*arguments, **words)

        return counted

    for name in made:
        monkeypatch.setattr(kernel, name, counting(name, getattr(kernel, name)))
    return made


def long_masks(queries: int, keys: int) -> list[Mask]:
    """Patterns that take every path at lengths of some blocks."""
    return [
        hw.window(20, 30),
        hw.causal(),
        hw.causal() & hw.window(40, 0),
        hw.window(1000, 1000),
        hw.dilated(3, 2, step=7),
        hw.strided(5),
        hw.window(20, 10) & hw.padding([keys, keys // 3]),
        hw.causal() & hw.padding([keys // 2, 0]),
        hw.window(9, 9) | hw.global_tokens([0, 50, keys - 1]),
        hw.causal() & (hw.window(9, 0) | hw.global_tokens([0, 40])),
        hw.documents(torch.arange(keys) // 45) & hw.causal(),
        hw.window(10, 10) | hw.random_blocks(16, 2, seed=3),
        hw.block_sparse(torch.rand(HEADS, 9, 9) > 0.6, 32),
        hw.from_tensor(torch.rand(queries, keys) > 0.7, "q k"),
        hw.per_head([hw.window(n, n) for n in range(HEADS)]),
        hw.window(30, 30) & hw.from_tensor(torch.randn(queries, keys), "q k"),
    ]


@pytest.mark.parametrize("number", range(len(long_masks(5, 60))))
@pytest.mark.parametrize(("queries", "keys", "groups"), [(67, 67, 3), (131, 257, 6), (257, 131, 1)])
def test_output_and_gradients_at_the_size_of_some_blocks(number, queries, keys, groups, path):
    mask = long_masks(queries, keys)[number]
    call = Call.of(*tensors(queries, keys, groups=groups, dtype=torch.float32), mask=mask)
    accept_with_gradients(call, tiled.run(call))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("number", [0, 6, 8, 11])
def test_every_dtype_at_the_size_of_some_blocks(dtype, number, path):
    mask = long_masks(131, 131)[number]
    call = Call.of(*tensors(131, 131, dtype=dtype), mask=mask)
    accept_with_gradients(call, tiled.run(call))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("position", every_position(), ids=named)
@pytest.mark.parametrize(
    "make",
    [
        hw.full,
        lambda: hw.window(20, 9),
        lambda: hw.window(9, 0) | hw.global_tokens([0, 70]) | hw.random_blocks(16, 1, seed=2),
    ],
)
def test_positions_at_the_size_of_some_blocks(position, make, dtype):
    call = Call.of(*tensors(67, 131, dtype=dtype), mask=make(), position=position)
    accept_with_gradients(call, tiled.run(call))


def test_a_long_window_with_scale_and_offset(path):
    call = Call.of(
        *tensors(521, 257, dtype=torch.float32), mask=hw.window(33, 60), scale=0.3, offset=-100
    )
    accept_with_gradients(call, tiled.run(call))


@pytest.mark.parametrize("mask", every_mask(), ids=identity)
def test_logsumexp_is_the_oracles_and_has_its_gradient(mask, path):
    q, k, v = tensors(dtype=torch.float32)
    call = Call.of(q, k, v, mask=mask, need=["logsumexp"])
    got, oracle, plain = tiled.run(call), reference(call), reference(call, torch.float32)
    accept(got.logsumexp, plain.logsumexp, oracle.logsumexp)
    assert torch.equal(got.logsumexp == -torch.inf, ~oracle.allowed.any(-1))

    def gradients(result, output):
        seen = result.logsumexp.masked_fill(result.logsumexp == -torch.inf, 0)
        return torch.autograd.grad(seen.sin().sum() + output.square().sum(), (q, k, v))

    for x, n, o in zip(
        *(gradients(result, result.output) for result in (got, plain, oracle)), strict=True
    ):
        accept(x, n, o)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_float_mask_that_wants_a_gradient_gets_it(dtype):
    bias = torch.randn(67, 131, dtype=dtype).masked_fill(torch.rand(67, 131) > 0.8, -torch.inf)
    bias.requires_grad_()
    q, k, v = tensors(67, 131, dtype=dtype)
    call = Call.of(q, k, v, mask=hw.from_tensor(bias, "q k") & hw.window(40, 20))
    seed = torch.randn(2, HEADS, 67, VALUE_DIM, dtype=torch.float64)

    def gradients(output):
        return torch.autograd.grad(output, (q, k, v, bias), seed.to(output.dtype))

    oracle, plain = reference(call), reference(call, dtype)
    for x, n, o in zip(
        *(gradients(r.output) for r in (tiled.run(call), plain, oracle)), strict=True
    ):
        accept(x, n, o)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "make",
    [
        lambda: hw.padding([100, 0]) & hw.window(20, 20),
        lambda: hw.padding([100, 0]) & (hw.causal() | hw.global_tokens([3])),
        lambda: (
            hw.padding(torch.arange(131).expand(2, -1) % 131 < 100)
            & hw.random_blocks(16, 4, seed=1)
        ),
    ],
)
def test_keys_that_nobody_sees_never_leak(make, junk, path):
    q, k, v = tensors(131, 131, dtype=torch.float32)
    mask = make()
    seen = mask.dense(Call.of(q, k, v).shape).expand(2, HEADS, -1, -1).any(-2)
    seen = seen.unflatten(1, (3, 2)).any(2)[..., None]
    dirty = [torch.where(seen, t.detach(), junk).requires_grad_() for t in (k, v)]
    clean_out = tiled.run(Call.of(q, k, v, mask=mask)).output
    dirty_out = tiled.run(Call.of(q, *dirty, mask=mask)).output
    assert not seen.all()
    assert torch.equal(clean_out, dirty_out)
    expected = torch.autograd.grad(clean_out.sum(), (q, k, v))
    for got, want in zip(torch.autograd.grad(dirty_out.sum(), (q, *dirty)), expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("mask", every_mask(3, 5), ids=identity)
def test_every_mask_has_first_and_second_derivatives(mask, check):
    q, k = torch.randn(2, 6, 3, 2).double(), torch.randn(2, 3, 5, 2).double()
    v = torch.randn(2, 3, 5, 1).double()

    def output(*qkv):
        result = tiled.run(Call.of(*qkv, mask=mask, need=["logsumexp"]))
        seen = result.logsumexp.masked_fill(result.logsumexp == -torch.inf, 0)
        return result.output, seen

    assert check(output, [t.requires_grad_() for t in (q, k, v)], fast_mode=True)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("position", every_position(2, 4, 3), ids=named)
def test_every_position_has_first_and_second_derivatives(position, check):
    q, k = torch.randn(1, 2, 3, 4).double(), torch.randn(1, 1, 5, 4).double()
    v = torch.randn(1, 1, 5, 3).double()
    wide = position.double()
    bias = torch.randn(3, 5).double()
    inputs = [t.requires_grad_() for t in (q, k, v, bias)] + list(wide.parameters())

    def output(*given):
        mask = hw.window(2, 1) & hw.from_tensor(given[3], "q k")
        return tiled.run(Call.of(*given[:3], mask=mask, position=wide)).output

    assert check(output, inputs, fast_mode=True)


def test_layouts_of_the_callers_tensors_do_not_matter():
    q, k, v = (t.detach() for t in tensors(67, 67, groups=HEADS, dtype=torch.float32))
    call = Call.of(q, k, v, mask=hw.window(9, 9))
    turned = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    last = [t.mT.contiguous().mT for t in (q, k, v)]
    shared = [t[:1].expand(2, -1, -1, -1) for t in (q, k, v)]
    for given in (turned, last, shared):
        each = Call.of(*given, mask=hw.window(9, 9))
        accept(
            tiled.run(each).output, reference(each, torch.float32).output, reference(each).output
        )
    assert torch.equal(tiled.run(call).output, tiled.run(Call.of(*last, mask=call.mask)).output)


def test_autocast_changes_nothing_inside(path):
    """Case 14: the bias and what stands in for the kernel stay in float32."""
    q, k, v = tensors(67, 67, dtype=torch.float32)
    position = hw.Shaw(3, DIM)

    def results():
        call = Call.of(q, k, v, mask=hw.window(20, 9), position=position)
        output = tiled.run(call).output
        return output, *torch.autograd.grad(output.sum(), (q, k, v, position.table))

    expected = results()
    with torch.autocast("cpu", torch.bfloat16):
        got = results()
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


# --- which path is taken -------------------------------------------------------------------------


def test_a_window_is_few_kernel_calls(calls):
    q, k, v = tensors(521, 521, groups=HEADS, dtype=torch.float32)
    output = tiled.run(Call.of(q, k, v, mask=hw.window(20, 30))).output
    assert 0 < calls["forward"] <= 521 // 32
    output.sum().backward()
    assert 0 < calls["backward"] <= 521 // 32


def test_blocks_fold_where_samples_share_a_mask_and_go_one_by_one_where_heads_share_keys():
    q, k = torch.zeros(2, 6, 5, 7, 3), torch.zeros(2, 6, 5, 9, 3)
    few = torch.zeros(2, 3, 5, 9, 3)
    band, by_sample = torch.zeros(1, 1, 1, 7, 9), torch.zeros(2, 1, 5, 7, 9)
    assert batched_kernel.layout_of(q, k, k, band) is BatchLayout.FOLD
    assert batched_kernel.layout_of(q, k, k, None) is BatchLayout.FOLD
    assert batched_kernel.layout_of(q, k, k, by_sample) is BatchLayout.EACH
    assert batched_kernel.layout_of(q, few, few, band) is BatchLayout.EACH
    assert (
        batched_kernel.layout_of(q[:, :, :1], few[:, :, :1], few[:, :, :1], None) is BatchLayout.ONE
    )
    apart = torch.zeros(6, 2, 5, 7, 3).transpose(0, 1)
    assert batched_kernel.layout_of(apart, k, k, band) is BatchLayout.EACH


def test_nothing_of_size_l_squared_is_held(monkeypatch):
    """Long enough that chunks are cut: the largest thing ever added to scores stays small."""
    largest = 0
    inner = kernel.forward

    def watched(q, k, v, added, *others):
        nonlocal largest
        largest = max(largest, 0 if added is None else added.numel())
        return inner(q, k, v, added, *others)

    monkeypatch.setattr(kernel, "forward", watched)
    q, k, v = (torch.randn(1, 2, 4099, 4) for _ in range(3))
    for limit in ("SCORES", "MOVING"):
        monkeypatch.setattr(forward, limit, 1 << 18)
    for mask in (hw.window(100, 100) & hw.padding([3001]), hw.causal()):
        tiled.run(Call.of(q, k, v, mask=mask, position=hw.ALiBi(2)))
    assert 0 < largest <= 1 << 18


# --- what the fused kernel is known for ----------------------------------------------------------


def kernel_case(dtype):
    q, k = torch.randn(2, 3, 7, 16, dtype=dtype), torch.randn(2, 3, 11, 16, dtype=dtype)
    return q, k, torch.randn(2, 3, 11, 16, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_what_is_added_has_the_dtype_that_the_kernel_is_right_for(dtype, monkeypatch):
    """float64 queries under a float32 mask are silently wrong; half ones are right."""
    seen = []
    inner = kernel.forward

    def watched(q, k, v, added, *others):
        seen.append(added.dtype)
        return inner(q, k, v, added, *others)

    monkeypatch.setattr(kernel, "forward", watched)
    q, k, v = tensors(37, 67, dtype=dtype)
    bias = torch.randn(37, 67)
    call = Call.of(q, k, v, mask=hw.from_tensor(bias, "q k"))
    accept_with_gradients(call, tiled.run(call))
    assert set(seen) == {torch.float64 if dtype == torch.float64 else torch.float32}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mask_with_another_last_stride_is_evened_and_three_axes_never_come(dtype, monkeypatch):
    q, k, v = kernel_case(dtype)
    added = torch.randn(1, 3, 11, 7, dtype=dtype).mT
    assert added.stride(-1) != 1
    got = kernel.forward(q, k, v, added, 0.3)
    for one, other in zip(got, kernel.forward(q, k, v, added.contiguous(), 0.3), strict=True):
        assert torch.equal(one, other)
    seen = []
    inner = kernel.forward
    monkeypatch.setattr(kernel, "forward", lambda *given: seen.append(given[:4]) or inner(*given))
    for number in (0, 6, 8, 10, 12):
        tiled.run(Call.of(*tensors(131, 131, dtype=dtype), mask=long_masks(131, 131)[number]))
    assert all(t.dim() == 4 for given in seen for t in given if t is not None)
    assert all(t.stride(-1) == 1 for given in seen for t in given[:3])


def test_a_blind_row_is_zero_in_the_kernel_and_its_logsumexp_is_ours():
    q, k, v = kernel_case(torch.float32)
    added = torch.zeros(1, 1, 7, 11)
    added[..., 2, :] = -torch.inf
    output, sums = kernel.forward(q, k, v, added, 0.3)
    assert not output[:, :, 2].any()
    if kernel.fused(q):
        assert not sums[:, :, 2].any()  # 0, not -inf: whoever merges must know the blind rows
    mask = hw.window(3, 3) & ~hw.global_tokens([2], symmetric=True)
    result = tiled.run(Call.of(*tensors(7, 7, dtype=torch.float32), mask=mask, need=["logsumexp"]))
    assert (result.logsumexp[:, :, 2] == -torch.inf).all()
    assert not result.output[:, :, 2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 3])
def test_the_fused_kernel_and_plain_products_are_both_right(dtype, groups, path):
    torch.manual_seed(3)
    q, k = torch.randn(2, 3, 7, 16, dtype=dtype), torch.randn(2, groups, 11, 16, dtype=dtype)
    v = torch.randn(2, groups, 11, 16, dtype=dtype)
    call = Call.of(*(t.requires_grad_() for t in (q, k, v)), scale=0.3)
    oracle, plain = reference(call), reference(call, dtype)
    with torch.no_grad():
        output, sums = kernel.forward(q, k, v, None, 0.3)
        accept(output, plain.output, oracle.output)
        accept(sums, plain.logsumexp.to(sums.dtype), oracle.logsumexp)
        seed = torch.randn_like(output)
        got = kernel.backward(BackwardInputs(seed, output, sums), q, k, v, None, 0.3)
    for x, n, o in zip(
        got,
        torch.autograd.grad(plain.output, (q, k, v), seed),
        torch.autograd.grad(oracle.output, (q, k, v), seed.double()),
        strict=True,
    ):
        accept(x, n, o)


def test_values_of_another_width_are_widened_for_the_kernel(monkeypatch):
    widths = set()
    inner = kernel.forward
    monkeypatch.setattr(
        kernel, "forward", lambda *t: widths.add((t[0].shape[-1], t[2].shape[-1])) or inner(*t)
    )
    call = Call.of(*tensors(67, 67, dtype=torch.float32), mask=hw.window(9, 9))
    assert tiled.run(call).output.shape[-1] == VALUE_DIM != DIM
    assert widths == {(16, 16)}


# --- what is refused, and what auto takes ---------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"need": ["weights"]}, r"it never holds the weights, Lq x Lk numbers; use engine='auto'")],
)
def test_what_it_cannot_do_is_refused_with_the_reason(arguments, message):
    with pytest.raises(EngineRefused, match=message) as caught:
        hw.attend(*tensors(), engine="tiled", **arguments)
    assert "tiled" in caught.value.text.zh


def test_every_reason_is_given():
    q, k, v = (t.to("meta") for t in tensors(0, 7))
    call = Call.of(q, k, v, need=["weights"])
    assert len(list(tiled.why_not(call))) == 3


@pytest.mark.parametrize("sizes", [(0, 7, 2), (5, 0, 2), (5, 7, 0)])
def test_a_size_of_zero_is_refused(sizes):
    queries, keys, batch = sizes
    call = Call.of(*tensors(queries, keys, batch=batch))
    assert [reason.en for reason in list(tiled.why_not(call))] == ["a size is 0"]


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated"
)  # PyTorch's own, in forward_ad
def test_transforms_and_forward_derivatives_are_refused_and_auto_still_gives_them():
    q, k, v = (t.detach() for t in tensors(dtype=torch.float64))
    reasons = []

    def output(q):
        reasons.extend(tiled.why_not(Call.of(q, k, v)))
        return hw.attend(q, k, v, mask=hw.causal(), engine="eager").sum()

    torch.func.grad(output)(q)
    torch.func.jvp(output, (q,), (q,))
    with torch.autograd.forward_ad.dual_level():
        output(torch.autograd.forward_ad.make_dual(q, q))
    assert len(reasons) == 3
    assert all("torch.func" in reason.en for reason in reasons)
    assert not list(tiled.why_not(Call.of(q, k, v)))


def auto(mask=None, length=1024, **arguments):
    q = torch.zeros(1, 2, length, 2)
    return best(Call.of(q, q, q, mask=mask, **arguments))


def test_auto_takes_it_where_at_most_half_of_the_work_is_left():
    assert auto(hw.window(64, 64)) is tiled
    assert auto(hw.documents([256] * 4)) is tiled
    assert auto(hw.window(64, 64), need=["logsumexp"]) is tiled
    for dense in (None, hw.causal(), hw.window(600, 600), hw.documents([1024])):
        assert auto(dense) is sdpa
    assert auto(hw.window(16, 16), length=256) is sdpa
    assert auto(hw.window(64, 64), need=["weights"]).NAME == "eager"
    assert auto(position=hw.ALiBi(2)) is sdpa
    assert auto(position=hw.ALiBi(2), length=4096) is tiled
    q = torch.zeros(1, 2, 1024, 2)
    assert hw.plan(q, q, q, mask=hw.window(64, 64)).engine == "tiled"
    assert hw.attend(q, q, q, mask=hw.causal(), engine="tiled").shape == q.shape


@pytest.mark.parametrize("mask", [hw.window(64, 64), hw.causal(), hw.full(), hw.padding([300])])
def test_the_share_is_never_less_than_the_truth(mask):
    q = torch.zeros(1, 1, 521, 1)
    call = Call.of(q, q, q, mask=mask)
    assert call.allowed().float().mean() <= nonempty_share(call) <= 1
    assert call.mask.tile(range(521), range(521)) in Tile


def test_backward_uses_larger_blocks_and_the_same_pairs():
    shape = Call.of(*tensors(257, 257)).shape
    few, many = (parts(hw.window(40, 40), shape, side) for side in (forward.SIDE, backward.SIDE))
    assert backward.SIDE > forward.SIDE
    assert len(many) <= len(few)
