"""The engine of LSH masks compared with the oracle; a pair in several rounds counts once."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import headwise as hw
from headwise.attention import choose
from headwise.call import Call
from headwise.engines import best, kernel, lsh
from headwise.engines.lsh import Blocks
from headwise.errors import EngineRefused
from headwise.planning import plan
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import DIM, GROUPS, HEADS, VALUE_DIM, accept_with_gradients, tensors


def masks(keys: int):
    """What the engine takes: one lsh, and any other masks that are to allow a pair as well."""
    return [
        hw.lsh(1, chunk=5, seed=0),
        hw.lsh(3, chunk=4, seed=1),
        hw.lsh(2, chunk=1000, seed=1),
        hw.lsh(3, chunk=1, buckets=2, seed=3),
        hw.lsh(2, chunk=31, buckets=2, seed=3),
        hw.causal() & hw.lsh(4, chunk=5, seed=0),
        hw.causal() & hw.lsh(2, chunk=3, seed=0, own=False),
        hw.lsh(3, chunk=4, seed=2) & hw.padding([17, 0]),
        hw.padding([1, keys]) & hw.causal() & hw.lsh(2, chunk=5, seed=0),
        hw.padding(torch.rand(2, keys) > 0.4) & hw.lsh(2, chunk=4, seed=0),
        hw.window(9, 9) & hw.lsh(2, chunk=4, seed=4),
        ~hw.window(0, 0) & hw.causal() & hw.lsh(2, chunk=7, seed=4),
    ]


@pytest.fixture(params=["fused", "plain"])
def path(request, monkeypatch):
    """The fused kernel, or the products that stand in where PyTorch does not have it."""
    if request.param == "plain":
        monkeypatch.setattr(kernel, "fused", lambda _: False)
    elif not kernel.fused(torch.zeros(1)):
        pytest.skip("this PyTorch has no fused kernel for a CPU")
    return request.param


def shared(length: int, *, groups: int = HEADS, dtype=torch.float32):
    """q, k and v where a query and the key of its position have one direction."""
    q, _, v = tensors(length, length, groups=groups, dtype=dtype)
    of_group = q.detach()[:, :: HEADS // groups]
    return q, torch.nn.functional.normalize(of_group, dim=-1).requires_grad_(), v


@pytest.mark.parametrize("number", range(len(masks(61))))
@pytest.mark.parametrize(
    ("queries", "keys", "groups"), [(61, 61, HEADS), (61, 61, GROUPS), (67, 29, 1), (2, 61, HEADS)]
)
def test_output_and_gradients_are_those_of_the_oracle(number, queries, keys, groups, path):
    mask = masks(keys)[number]
    call = Call.of(*tensors(queries, keys, groups=groups, dtype=torch.float32), mask=mask)
    accept_with_gradients(call, lsh.run(call))


@pytest.mark.parametrize("number", range(len(masks(61))))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_shared_queries_and_keys_in_every_dtype(number, dtype):
    call = Call.of(*shared(61, dtype=dtype), mask=masks(61)[number])
    accept_with_gradients(call, lsh.run(call))


def test_a_bias_of_another_mask_is_added():
    bias = torch.randn(HEADS, 61, 61).masked_fill(torch.rand(HEADS, 61, 61) > 0.8, -torch.inf)
    mask = hw.lsh(2, chunk=5, seed=6) & hw.from_tensor(bias, "h q k")
    call = Call.of(*tensors(61, 61, dtype=torch.float32), mask=mask)
    accept_with_gradients(call, lsh.run(call))


@pytest.mark.parametrize("numbers", [1, 2**11, 2**14])
def test_pieces_of_any_size_give_the_same(numbers, monkeypatch):
    monkeypatch.setattr(lsh, "NUMBERS", numbers)
    for q, k, v in (shared(61), tensors(61, 61, dtype=torch.float32)):
        call = Call.of(q, k, v, mask=hw.lsh(3, chunk=4, seed=1) & hw.padding([61, 23]))
        accept_with_gradients(call, lsh.run(call))


def test_tensors_of_another_layout():
    """(B, L, H, D) turned to (B, H, L, D), as a module gives them."""
    q, k, v = (
        torch.randn(2, 61, HEADS, dim).transpose(1, 2).requires_grad_()
        for dim in (DIM, DIM, VALUE_DIM)
    )
    call = Call.of(q, k, v, mask=hw.causal() & hw.lsh(3, chunk=4, seed=1))
    accept_with_gradients(call, lsh.run(call))


def test_a_scale_an_offset_and_a_rotary_position():
    q, k, v = tensors(23, 61, groups=HEADS, dtype=torch.float32)
    position = hw.Rotary(DIM, pairs="halves", rotary_dim=10)
    mask = hw.causal() & hw.lsh(2, chunk=4, seed=1)
    call = Call.of(q, k, v, mask=mask, position=position, scale=0.7, offset=11)
    accept_with_gradients(call, lsh.run(call))


@pytest.mark.parametrize("chunk", [4, 61, 1000])
@pytest.mark.parametrize("make", [shared, lambda n: tensors(n, n, dtype=torch.float32)])
def test_every_query_has_one_place_and_every_pair_of_a_round_is_listed_once(make, chunk):
    q, k, v = make(61)
    mask = Call.of(q, k, v, mask=hw.lsh(2, chunk=chunk, seed=1) & hw.padding([61, 3])).mask.left
    for number in range(2):
        one = mask.rounds(number, number + 1)
        blocks, listed = Blocks.of(one), torch.zeros(2, HEADS, 61, 61, dtype=torch.long)
        for b, h, n, r in (blocks.queries >= 0).nonzero().tolist():
            keys = blocks.keys[b, h, n]
            here = listed[b, h, blocks.queries[b, h, n, r]]
            here += torch.bincount(keys[keys >= 0], minlength=61)
        assert torch.equal(listed, one.dense(Call.of(q, k, v).shape).long())
        assert torch.equal(
            blocks.queries.flatten(2).sort(-1).values[..., -61:],
            torch.arange(61).expand(2, HEADS, 61),
        )


def test_shared_queries_read_every_key_once():
    call = Call.of(*shared(61), mask=hw.lsh(1, chunk=4, seed=1))
    assert Blocks.of(call.mask).chained
    assert Blocks.of(call.mask).table.shape == (2, HEADS, 17, 4)
    apart = Call.of(*tensors(61, 61, groups=HEADS), mask=hw.lsh(1, chunk=4, seed=1))
    assert not Blocks.of(apart.mask).chained


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf])
def test_padded_keys_never_touch_the_result_or_a_gradient(junk):
    mask = hw.lsh(2, chunk=4, seed=1) & hw.padding([29, 0])
    q, k, v = tensors(61, 61, dtype=torch.float32)
    results = []
    for filler in (0.0, junk):
        dirty_k, dirty_v = k.detach().clone(), v.detach().clone()
        for sample, length in enumerate((29, 0)):
            dirty_k[sample, :, length:], dirty_v[sample, :, length:] = filler, filler
        leaves = [q, dirty_k.requires_grad_(), dirty_v.requires_grad_()]
        output = lsh.run(Call.of(*leaves, mask=mask)).output
        results.append([output, *torch.autograd.grad(output.sum(), leaves)])
    assert all(map(torch.equal, *results))


def test_a_real_nan_is_not_hidden():
    q, k, v = (t.detach() for t in tensors(61, 61, dtype=torch.float32))
    call = Call.of(q, k, v, mask=hw.lsh(2, chunk=4, seed=1))
    v[0, 0, 3, 0] = torch.nan
    seen = call.allowed()[0, 0, :, 3]
    assert lsh.run(call).output[0, 0, seen, 0].isnan().all()


@pytest.mark.parametrize("chunk", [4, 1000])
def test_the_logsumexp_is_that_of_the_oracle_and_minus_inf_where_blind(chunk):
    q, k, v = (t.detach() for t in tensors(61, 61, dtype=torch.float32))
    mask = hw.lsh(3, chunk=chunk, seed=1) & hw.padding([61, 0])
    call = Call.of(q, k, v, mask=mask, need=["logsumexp"])
    found = lsh.run(call).logsumexp
    accept(found, reference(call, torch.float32).logsumexp, reference(call).logsumexp)
    assert (found[1] == -torch.inf).all()


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_it_has_every_derivative(check):
    q, k, v = (torch.randn(1, 2, 7, 3).double().requires_grad_() for _ in "qkv")
    mask = hw.causal() & hw.lsh(2, chunk=2, seed=0)
    assert check(lambda *qkv: hw.attend(*qkv, mask=mask, engine="lsh"), (q, k, v), fast_mode=True)


def test_only_what_wants_a_gradient_gets_a_second_one():
    q, k, v = (t.detach() for t in tensors(29, 29))
    v.requires_grad_()
    output = hw.attend(q, k, v, mask=hw.lsh(2, chunk=4, seed=0), engine="lsh")
    (grad,) = torch.autograd.grad(output.square().sum(), v, create_graph=True)
    again = hw.attend(q, k, v, mask=hw.lsh(2, chunk=4, seed=0), engine="eager")
    (expected,) = torch.autograd.grad(again.square().sum(), v, create_graph=True)
    twice, wanted = (torch.autograd.grad(g.square().sum(), v)[0] for g in (grad, expected))
    accept(twice, wanted, wanted)


def test_it_is_chosen_where_its_chunks_pay():
    q, k, v = (t.detach() for t in tensors(1031, 1031, dtype=torch.float32, batch=1))
    mask = hw.causal() & hw.lsh(2, chunk=16, seed=0)
    assert best(Call.of(q, k, v, mask=mask)) is lsh
    assert best(Call.of(q, k, v, mask=hw.lsh(9, chunk=64, seed=0))) is not lsh
    assert best(Call.of(q[:, :, :61], k[:, :, :61], v[:, :, :61], mask=mask)) is not lsh
    assert best(Call.of(q, k, v, mask=mask | hw.window(3, 3))) is not lsh
    found = plan(q, k, v, mask=mask)
    assert found.engine == "lsh"
    assert found.flops == 2 * HEADS * 1031 * 2 * (2 * 16) * (DIM + VALUE_DIM)


def test_nothing_of_the_size_of_all_pairs_is_held():
    """At this length one number for each pair and head would take 68 GiB."""
    q, k, v = (torch.randn(1, 1, 2**17 + 1, 4).requires_grad_() for _ in "qkv")
    output = hw.attend(q, k, v, mask=hw.lsh(1, chunk=16, seed=0), engine="lsh")
    output.sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


def refusals():
    q, k, v = tensors(29, 29, dtype=torch.float32)
    few, one = (q, k, v), hw.lsh(1, chunk=4, seed=0)
    learned = torch.randn(29, 29, requires_grad=True)
    return [
        (few, {"mask": hw.causal()}, "the mask is not one lsh"),
        (few, {"mask": one | hw.causal()}, "the mask is not one lsh"),
        (few, {"mask": one & hw.lsh(1, chunk=3, seed=1)}, "the mask is not one lsh"),
        (few, {"mask": one, "need": ["weights"]}, "it does not return weights"),
        (few, {"mask": one, "need": ["logsumexp"]}, "its logsumexp has no gradient; use"),
        (few, {"mask": one, "dropout": 0.5}, "it does not support dropout"),
        ((q[:, :, :0], k, v), {"mask": one}, "a size is 0"),
        (few, {"mask": one, "position": hw.ALiBi(HEADS)}, "ALiBi adds to the scores or the values"),
        (few, {"mask": one & hw.from_tensor(learned, "q k")}, "the mask's bias needs a gradient"),
        (few, {"mask": hw.full(), "dropout": 0.5}, "one lsh.*; it does not support dropout"),
    ]


@pytest.mark.parametrize("number", range(len(refusals())))
def test_every_reason_is_given(number):
    given, words, message = refusals()[number]
    with pytest.raises(EngineRefused, match=message):
        choose(Call.of(*given, **words), "lsh")


def test_transforms_of_functions_are_refused():
    q, k, v = (t.detach() for t in tensors(29, 29, dtype=torch.float32))
    mask = hw.lsh(1, chunk=4, seed=0)
    with pytest.raises(EngineRefused, match=r"not support torch.func transforms"):
        torch.func.grad(lambda x: hw.attend(x, k, v, mask=mask, engine="lsh").sum())(q)
