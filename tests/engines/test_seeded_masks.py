"""Masks that draw from a seed under `torch.func`: what they draw is theirs, not the caller's."""

import pytest
import torch
from torch.func import grad, jvp, vmap

import headwise as hw
from headwise.call import Call
from headwise.masks.patterns.block_sparse import drawn_layout
from headwise.masks.patterns.lsh import hashed
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept

N, B, H, L, D = 3, 2, 2, 37, 7
MASKS = [
    hw.random_blocks(4, 2, seed=1),
    hw.window(2, 1) | hw.random_blocks(4, 1, seed=2),
    hw.lsh(2, chunk=4, seed=1),
    hw.causal() & hw.lsh(1, chunk=4, seed=2, own=False),
    hw.padding([L - 9, L]) & hw.lsh(2, chunk=4, buckets=[2, 4], seed=3),
]
RANDOMNESS = ["error", "same", "different"]


def rows():
    """q, k and v, each (N, B, H, L, D)."""
    torch.manual_seed(0)
    return torch.randn(3, N, B, H, L, D).unbind()


def attended(mask):
    return lambda q, k, v: hw.attend(q, k, v, mask=mask)


def hold(found, mask, *given, of=lambda results, _: results):
    """Hold the results of every call, or what is made of them, to the oracle."""
    for one, each in zip(found, zip(*given, strict=True), strict=True):
        call = Call.of(*each, mask=mask)
        plain, exact = (reference(call, dtype).output for dtype in (torch.float32, torch.float64))
        accept(one, of(plain, call), of(exact, call))


@pytest.mark.parametrize("randomness", RANDOMNESS)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_mapped_over_it_is_what_it_is_one_by_one(mask, randomness):
    given = rows()
    hold(vmap(attended(mask), randomness=randomness)(*given), mask, *given)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("axis", [1, -1])
def test_along_another_axis_and_with_keys_that_all_share(mask, axis):
    (q, k, v), moved = rows(), (axis, 0)
    found = vmap(lambda q, v: attended(mask)(q, k[0], v), moved)(q.movedim(0, axis), v)
    hold(found, mask, q, [k[0]] * N, v)


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_gradients_that_are_mapped_over(mask):
    def loss(q, k, v):
        return hw.attend(q, k, v, mask=mask).pow(2).sum()

    def gradient(output, call):
        return torch.autograd.grad(output.pow(2).sum(), call.q)[0]

    q, k, v = rows()
    leaves = [each.clone().requires_grad_() for each in q]
    hold(vmap(grad(loss))(q, k, v), mask, leaves, k, v, of=gradient)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_derivatives_in_forward_mode(mask):
    q, k, v = (each[0] for each in rows())
    output, moved = jvp(lambda v: attended(mask)(q, k, v), (v,), (2 * v,))
    assert torch.equal(moved, 2 * output)  # it is linear in v, and twice a number is exact


def test_mapped_over_twice():
    given = rows()
    found = vmap(vmap(attended(MASKS[2])))(*(each[None] for each in given))
    hold(found[0], MASKS[2], *given)


@pytest.mark.parametrize("real", [None, torch.arange(L) < torch.tensor([[L - 9], [L]])])
def test_opcheck_finds_nothing(real):
    q, k, _ = (each[0] for each in rows())
    found = torch.library.opcheck(hashed, (q, k[:, :1], real, 0, 2, 4, [], 1))
    assert set(found.values()) == {"SUCCESS"}
    drawn = torch.library.opcheck(drawn_layout, (5, 3, 2, 1, 2))
    assert set(drawn.values()) == {"SUCCESS"}


def test_dropout_that_is_mapped_over_asks_its_caller():
    given = rows()

    def dropped(q, k, v):
        return hw.attend(q, k, v, dropout=0.5)

    with pytest.raises(RuntimeError, match="use the 'same' or 'different' randomness flags"):
        vmap(dropped)(*given)
    assert vmap(dropped, randomness="different")(*given).isfinite().all()
