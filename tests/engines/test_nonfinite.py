"""NaN and infinity in a key or value reach the queries that may attend to it, and no others."""

import math
from dataclasses import replace

import pytest
import torch

import headwise as hw
from headwise.call import Call
from headwise.engines import ENGINES
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept

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


def inputs(length):
    generator = torch.Generator().manual_seed(1)
    rows = [
        torch.randn(2, heads, length, DIM, generator=generator)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]
    return [tensor.requires_grad_() for tensor in rows]


def spoiled(rows, sample, head, key, number):
    changed = rows.detach().clone()
    changed[sample, head, key, 1] = number
    return changed.requires_grad_()


def steps(q, k, v, mask):
    """The plain run in float32, and the oracle."""
    call = Call.of(q, k, v, mask=mask)
    wide = replace(call, q=q.double(), k=k.double(), v=v.double())
    return reference(call, torch.float32), reference(wide)


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("length", [17, 70])
@pytest.mark.parametrize(("where", "number"), [("k", math.nan), ("v", math.nan), ("k", math.inf)])
def test_only_queries_that_may_attend_are_reached(engine, name, length, where, number):
    q, k, v = inputs(length)
    mask, key = MASKS[name](length), length - 7
    plain, exact = steps(q, k, v, mask)
    bad_k = spoiled(k, 1, 0, key, number) if where == "k" else k
    bad_v = spoiled(v, 1, 0, key, number) if where == "v" else v
    output = hw.attend(q, bad_k, bad_v, mask=mask, engine=engine)
    allowed = exact.allowed[..., key].clone()  # (B, H, Lq)
    allowed[0], allowed[1, HEADS // KEY_HEADS :] = False, False  # another sample, another head
    if math.isnan(number):  # an infinite score may be -inf, whose weight is 0
        assert bool(output[allowed].isnan().any(-1).all())
    accept(output[~allowed], plain.output[~allowed], exact.output[~allowed])


@pytest.mark.parametrize("engine", ["eager", "sdpa", "tiled", "rows"])
def test_the_gradients_of_the_other_document_are_as_before(engine):
    q, k, v = inputs(40)
    mask = hw.documents([20, 20])
    plain, exact = (
        torch.autograd.grad(run.output[:, :, :20].sum(), (q, k, v), retain_graph=True)
        for run in steps(q, k, v, mask)
    )
    bad = spoiled(v, 0, 0, 30, math.nan)
    output = hw.attend(q, k, bad, mask=mask, engine=engine)
    gradients = torch.autograd.grad(output[:, :, :20].sum(), (q, k, bad))
    for gradient, near, known in zip(gradients, plain, exact, strict=True):
        assert bool(gradient.isfinite().all())
        if bool(near[:, :, :20].any()):
            accept(gradient[:, :, :20], near[:, :, :20], known[:, :, :20].double())


def test_every_statistic_of_the_other_queries_is_as_before():
    q, k, v = inputs(40)
    need = ["weights", "logsumexp", "entropy", "received", "distance", "largest"]
    mask, bad = hw.documents([20, 20]), spoiled(k, 0, 0, 30, math.nan)
    near = hw.attend(q, k, v, mask=mask, need=need, engine="eager")
    exact = hw.attend(q.double(), k.double(), v.double(), mask=mask, need=need, engine="eager")
    result = hw.attend(q, bad, v, mask=mask, need=need)
    for name in need:
        rows = [getattr(one, name) for one in (result, near, exact)]
        if name == "received":
            assert bool(rows[0][0, : HEADS // KEY_HEADS].isnan().all())
            accept(*(row[1] for row in rows))
        else:
            accept(*(row[:, :, :20] for row in rows))


def test_a_query_that_is_not_a_number_stays_alone():
    q, k, v = inputs(40)
    plain, exact = steps(q, k, v, hw.causal())
    output = hw.attend(spoiled(q, 0, 0, 5, math.nan), k, v, mask=hw.causal())
    assert bool(output[0, 0, 5].isnan().all())
    others = torch.ones(output.shape[:3], dtype=torch.bool)
    others[0, 0, 5] = False
    accept(output[others], plain.output[others], exact.output[others])
