"""Heads with different masks are computed separately on the tiled engine, and keep their order."""

import pytest
import torch

import headwise as hw
from headwise.call import Call
from headwise.engines import ENGINES, tiled
from headwise.engines.tiled.eligibility import head_groups
from tests.examples import HEADS, accept_with_gradients, tensors

L = 137
BIAS = hw.from_tensor(torch.randn(L, L, generator=torch.Generator().manual_seed(3)), "q k")
SIX = (hw.window(3, 3), hw.full(), hw.window(3, 3), hw.causal(), hw.window(9, 0), hw.causal())


def call(mask, **words):
    groups_of = words.pop("groups", 3)
    return Call.of(*tensors(L, L, groups=groups_of, dtype=torch.float32), mask=mask, **words)


@pytest.mark.parametrize("groups_of", [1, 2, 3, HEADS])
@pytest.mark.parametrize(
    "mask",
    [
        hw.per_head(SIX),
        hw.per_head(SIX) & hw.padding([L, 50]),
        ~hw.per_head(SIX[::-1]),
        hw.per_head([hw.per_head(SIX), *SIX[1:]]) | hw.global_tokens([5]),
        hw.per_head([BIAS, *SIX[1:]]),
    ],
    ids=lambda mask: mask.name[:30],
)
def test_every_gradient_and_sum_is_right(mask, groups_of):
    one = call(mask, groups=groups_of, need=["logsumexp"])
    accept_with_gradients(one, tiled.run(one))


def test_sinks_stay_with_their_heads():
    sinks = torch.randn(HEADS, requires_grad=True)
    one = call(hw.per_head(SIX), sinks=sinks)
    accept_with_gradients(one, tiled.run(one))


def test_heads_are_grouped_by_their_mask():
    assert head_groups(call(hw.per_head(SIX))) == [
        ((0, 2), hw.window(3, 3)),
        ((1,), hw.full()),
        ((3, 5), hw.causal()),
        ((4,), hw.window(9, 0)),
    ]


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (hw.window(3, 3), {}),
        (hw.per_head(SIX), {"position": hw.ALiBi(HEADS)}),
        (hw.per_head(SIX) & hw.from_tensor(torch.ones(HEADS, L, L).bool(), "h q k"), {}),
        (hw.per_head([hw.causal()] * HEADS), {}),
    ],
    ids=["one mask", "a position", "a mask that knows heads", "all alike"],
)
def test_heads_that_cannot_be_told_apart_stay_together(mask, words):
    assert len(head_groups(call(mask, **words))) == 1


def test_a_position_for_each_head_is_right_beside_masks_for_each_head():
    one = call(hw.per_head(SIX), position=hw.ALiBi(HEADS))
    accept_with_gradients(one, tiled.run(one))


def test_one_dense_head_does_not_make_the_others_dense():
    q = torch.zeros(1, 8, 8192, 8)
    mixed = hw.per_head([hw.full(), *[hw.window(64, 64)] * 7])
    plan = hw.plan(q, q, q, mask=mixed)
    alone = [hw.plan(q[:, :1], q[:, :1], q[:, :1], mask=m) for m in (hw.full(), hw.window(64, 64))]
    assert plan.engine == tiled.NAME
    dense, near = (each.flops for each in alone)
    assert plan.flops == dense + 7 * near
    assert {engine.NAME for engine in ENGINES} >= {plan.engine}
