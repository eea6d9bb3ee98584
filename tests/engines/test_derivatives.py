"""Case 49: every derivative with the default engine."""

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import headwise as hw
from headwise.call import Call
from headwise.engines import best, eager, sdpa
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import every_mask, every_position, identity, named, tensors

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own

QUERIES, KEYS, DIM, VALUE_DIM = 3, 5, 4, 2
with torch.random.fork_rng():  # the same masks, whatever else is collected
    torch.manual_seed(0)
    POSITIONS = every_position(6, DIM, VALUE_DIM)
    MASKS = [*every_mask(QUERIES, KEYS), hw.lsh(2, chunk=2, seed=0)]


def small(keys=KEYS, dim=DIM, value_dim=VALUE_DIM, dtype=torch.float64):
    """q, k, v that want gradients; grouped heads."""
    q = torch.randn(2, 6, QUERIES, dim, dtype=dtype, requires_grad=True)
    k = torch.randn(2, 3, keys, dim, dtype=dtype, requires_grad=True)
    v = torch.randn(2, 3, keys, value_dim, dtype=dtype, requires_grad=True)
    return q, k, v


@pytest.mark.parametrize("position", POSITIONS, ids=named)
@pytest.mark.parametrize("mask", MASKS, ids=identity)
def test_every_mask_with_every_position_has_first_and_second_derivatives(mask, position):
    wide = position.double()
    learned = list(wide.parameters())

    def output(*given):
        return hw.attend(*given[:3], mask=mask, position=wide)

    inputs = [*small(), *learned]
    assert gradcheck(output, inputs, fast_mode=True)
    assert gradgradcheck(output, inputs, fast_mode=True)


@pytest.mark.parametrize("value_dim", [DIM, VALUE_DIM])
@pytest.mark.parametrize(
    "mask",
    [hw.full(), hw.causal(), hw.window(2, 3), hw.padding([7, 0]), hw.causal() & hw.padding([4, 9])],
    ids=identity,
)
def test_the_fused_kernel_has_them_where_it_is_long_enough_to_run(mask, value_dim):
    """Few keys go to products: here are more, in a square, with the logsumexp and its gradient."""
    q, k, v = (torch.randn(2, 2, 11, DIM, dtype=torch.float64) for _ in range(3))
    inputs = [t.requires_grad_() for t in (q, k, v[..., :value_dim].contiguous())]

    def results(*given):
        result = hw.attend(*given, mask=mask, need=["logsumexp"])
        return result.output, result.logsumexp.masked_fill(result.logsumexp == -torch.inf, 0)

    assert best(Call.of(*inputs, mask=mask, need=["logsumexp"])) is sdpa
    assert gradcheck(results, inputs, fast_mode=True)
    assert gradgradcheck(results, inputs, fast_mode=True)


def penalty(output, inputs):
    """The gradients of a gradient penalty."""
    first = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
    return torch.autograd.grad(sum(each.square().sum() for each in first), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", [hw.full(), hw.causal(), hw.padding([13, 5])], ids=identity)
def test_a_gradient_penalty_is_the_oracles(mask, dtype):
    q, k, v = tensors(17, 17, dtype=dtype)
    call = Call.of(q, k, v, mask=mask)
    assert best(call) is sdpa
    oracle, plain = reference(call).output, reference(call, dtype).output
    got = penalty(hw.attend(q, k, v, mask=mask), (q, k, v))
    for x, n, o in zip(got, penalty(plain, (q, k, v)), penalty(oracle, (q, k, v)), strict=True):
        accept(x, n, o)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", [hw.full(), hw.causal() & hw.padding([5, 2])], ids=identity)
def test_transforms_of_torch_func_are_those_of_the_reference(mask, dtype):
    q, k, v = (t.detach() for t in small(dtype=dtype))
    tangent = torch.randn_like(q)

    def ours(x):
        return hw.attend(x, k, v, mask=mask)

    def exact(kind):
        return lambda x: reference(Call.of(x, k, v, mask=mask), kind).output

    def every(f):
        yield torch.func.jvp(f, (q,), (tangent,))[1]
        yield torch.func.grad(lambda x: f(x).square().sum())(q)
        yield torch.func.jacrev(f)(q)
        yield torch.func.hessian(lambda x: f(x).square().sum())(q)

    for x, n, o in zip(every(ours), every(exact(dtype)), every(exact(torch.float64)), strict=True):
        accept(x, n, o)


def test_forward_mode_and_vmap_run_and_the_plan_says_by_what():
    q, k, v = (t.detach() for t in small(value_dim=DIM, dtype=torch.float32))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        plan = hw.plan(dual, k, v)
        tangent = forward_ad.unpack_dual(hw.attend(dual, k, v)).tangent
    assert plan.engine == "eager"
    assert any("forward-mode" in reason.en for reason in plan.refused["sdpa"])
    _, expected = torch.func.jvp(lambda x: hw.attend(x, k, v), (q,), (torch.ones_like(q),))
    assert torch.equal(tangent, expected)
    many = torch.stack((q, 2 * q))
    mapped = torch.func.vmap(lambda x: hw.attend(x, k, v))(many)
    for rows, x in zip(mapped, many, strict=True):
        assert torch.equal(rows, eager.run(Call.of(x, k, v)).output)


@pytest.mark.parametrize("engine", ["tiled", "rows"])
@pytest.mark.parametrize("mask", [hw.full(), hw.window(1, 1) | hw.global_tokens([0])], ids=identity)
@pytest.mark.parametrize("position", POSITIONS, ids=named)
def test_backward_is_of_what_functional_call_put_in_for_the_forward(position, mask, engine):
    module, (q, k, v) = position.double(), small()
    others = {
        name: torch.randn_like(each).requires_grad_() for name, each in module.named_parameters()
    }

    class Attending(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.position = module

        def forward(self, engine):
            return hw.attend(q, k, v, mask=mask, position=self.position, engine=engine)

    def gradients(engine):
        put = {f"position.{name}": each for name, each in others.items()}
        output = torch.func.functional_call(Attending(), put, (engine,))
        given = (q, k, v, *others.values())
        return torch.autograd.grad(output.square().sum(), given, allow_unused=True)

    for found, expected in zip(gradients(engine), gradients("eager"), strict=True):
        assert (found is None) == (expected is None)
        if expected is not None:
            accept(found, expected, expected)


def test_a_position_that_is_differentiated_forward_is_seen():
    q, k, v = (t.detach() for t in small(dtype=torch.float64))
    position = hw.T5Bias(6, num_buckets=8, max_distance=5).double()
    names = [name for name, _ in position.named_parameters()]
    values = tuple(p.detach() for p in position.parameters())

    def output(*given):
        module = torch.nn.ModuleList([position])
        own = {f"0.{name}": value for name, value in zip(names, given, strict=True)}
        with torch.nn.utils.stateless._reparametrize_module(module, own):
            return hw.attend(q, k, v, position=position)

    tangents = tuple(torch.ones_like(value) for value in values)
    with forward_ad.dual_level():
        dual = [forward_ad.make_dual(*pair) for pair in zip(values, tangents, strict=True)]
        got = forward_ad.unpack_dual(output(*dual)).tangent
    assert torch.equal(got, torch.func.jvp(output, values, tangents)[1])


def test_a_gradient_in_any_layout_gives_the_same():
    q, k, v = (torch.randn(2, 3, 19, 8, requires_grad=True) for _ in range(3))
    output = sdpa.run(Call.of(q, k, v)).output
    grad = torch.randn(output.shape)
    layouts = (grad, grad.transpose(1, 2).contiguous().transpose(1, 2), grad.mT.contiguous().mT)
    first, *others = (
        torch.autograd.grad(output, (q, k, v), each, retain_graph=True) for each in layouts
    )
    for other in others:
        assert all(map(torch.equal, first, other))
    ones = torch.ones(1, 1, 1, 1).expand_as(output)
    expanded = torch.autograd.grad(output, (q, k, v), ones, retain_graph=True)
    whole = torch.autograd.grad(output, (q, k, v), ones.contiguous())
    assert all(map(torch.equal, expanded, whole))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", [hw.full(), hw.causal(), hw.padding([13, 0])], ids=identity)
def test_the_logsumexp_and_its_gradient_are_the_oracles(mask, dtype):
    q, k, v = tensors(17, 17, dtype=dtype)
    call = Call.of(q, k, v, mask=mask, need=["logsumexp"])
    assert best(call) is sdpa
    got, oracle, plain = sdpa.run(call), reference(call), reference(call, dtype)
    accept(got.logsumexp, plain.logsumexp, oracle.logsumexp)

    def gradients(result):
        seen = result.logsumexp.masked_fill(result.logsumexp == -torch.inf, 0)
        return torch.autograd.grad(seen.sin().sum() + result.output.square().sum(), (q, k, v))

    for x, n, o in zip(*(gradients(result) for result in (got, plain, oracle)), strict=True):
        accept(x, n, o)


def test_under_autocast_products_are_lowered_and_a_bias_is_not():
    q, k, v = tensors(17, 17, dtype=torch.float32)
    bias = torch.randn(17, 17)
    mask = hw.from_tensor(bias, "q k")
    with torch.autocast("cpu", torch.bfloat16):
        got = hw.attend(q, k, v, mask=mask)
    assert got.dtype == torch.bfloat16
    lowered = Call.of(*(t.bfloat16() for t in (q, k, v)), mask=mask)
    accept(got, reference(lowered, torch.bfloat16).output, reference(lowered).output)
    assert torch.autograd.grad(got.sum(), q)[0].dtype == torch.float32
