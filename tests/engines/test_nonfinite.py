"""NaN and infinity in a key or value reach the queries that may attend to it, and no others."""

import math

import pytest
import torch

import headwise as hw
from headwise.engines import ENGINES

HEADS, KEY_HEADS, DIM = 4, 2, 16
MASKS = {
    "documents": lambda n: hw.documents([n // 2, n - n // 2]),
    "causal": lambda _: hw.causal(),
    "window": lambda _: hw.window(3, 2),
    "per_head": lambda _: hw.per_head([hw.causal(), hw.window(2, 2), hw.full(), ~hw.causal()]),
    "padding & causal": lambda n: hw.padding([n, n - 5]) & hw.causal(),
    "from_tensor": lambda n: hw.from_tensor(torch.arange(n)[:, None] >= torch.arange(n)),
}
NAMES = [engine.NAME for engine in ENGINES if engine.NAME not in ("lsh", "flex")]


def inputs(length, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    rows = [
        torch.randn(2, heads, length, DIM, generator=generator, dtype=dtype)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]
    return [tensor.requires_grad_() for tensor in rows]


def spoiled(rows, sample, head, key, number):
    changed = rows.detach().clone()
    changed[sample, head, key, 1] = number
    return changed.requires_grad_()


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("length", [17, 70])
@pytest.mark.parametrize(("where", "number"), [("k", math.nan), ("v", math.nan), ("k", math.inf)])
def test_only_queries_that_may_attend_are_reached(engine, name, length, where, number):
    q, k, v = inputs(length)
    mask, key = MASKS[name](length), length - 7
    expected = hw.attend(q, k, v, mask=mask, engine="eager")
    bad_k = spoiled(k, 1, 0, key, number) if where == "k" else k
    bad_v = spoiled(v, 1, 0, key, number) if where == "v" else v
    output = hw.attend(q, bad_k, bad_v, mask=mask, engine=engine)
    shape = hw.call.Call.of(q, k, v, mask=mask).shape
    allowed = mask.resolve(shape).dense(shape).expand(2, HEADS, length, length)[..., key].clone()
    allowed[0], allowed[1, HEADS // KEY_HEADS :] = False, False  # another sample, another head
    if math.isnan(number):  # an infinite score may be -inf, whose weight is 0
        assert bool(output[allowed].isnan().any(-1).all())
    torch.testing.assert_close(output[~allowed], expected[~allowed])


@pytest.mark.parametrize("engine", ["eager", "sdpa", "tiled", "rows"])
def test_the_gradients_of_the_other_document_are_as_before(engine):
    q, k, v = inputs(40)
    mask = hw.documents([20, 20])
    expected = torch.autograd.grad(hw.attend(q, k, v, mask=mask)[:, :, :20].sum(), (q, k, v))
    bad = spoiled(v, 0, 0, 30, math.nan)
    output = hw.attend(q, k, bad, mask=mask, engine=engine)
    gradients = torch.autograd.grad(output[:, :, :20].sum(), (q, k, bad))
    for gradient, known in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient[:, :, :20], known[:, :, :20])


def test_every_statistic_of_the_other_queries_is_as_before():
    q, k, v = inputs(40)
    need = ["weights", "logsumexp", "entropy", "received", "distance", "largest"]
    mask = hw.documents([20, 20])
    expected = hw.attend(q, k, v, mask=mask, need=need)
    result = hw.attend(q, spoiled(k, 0, 0, 30, math.nan), v, mask=mask, need=need)
    for name in need:
        if name != "received":
            here, known = getattr(result, name), getattr(expected, name)
            torch.testing.assert_close(here[:, :, :20], known[:, :, :20])
    assert bool(result.received[0, : HEADS // KEY_HEADS].isnan().all())
    torch.testing.assert_close(result.received[1], expected.received[1])


def test_a_query_that_is_not_a_number_stays_alone():
    q, k, v = inputs(40)
    expected = hw.attend(q, k, v, mask=hw.causal())
    output = hw.attend(spoiled(q, 0, 0, 5, math.nan), k, v, mask=hw.causal())
    assert bool(output[0, 0, 5].isnan().all())
    output[0, 0, 5] = expected[0, 0, 5]
    torch.testing.assert_close(output, expected)
