"""The reference compared with closed forms, with loops, and with PyTorch."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

import headwise as hw
from headwise.call import Call
from headwise.errors import BadValue
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import GROUPS, HEADS, every_mask, identity, tensors


def test_two_scores_one_apart_give_e_over_one_plus_e():
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([1.0, 0.0]).view(1, 1, 2, 1)
    steps = reference(Call.of(q, k, torch.ones(1, 1, 2, 1)))
    expected = torch.tensor([math.e, 1.0], dtype=torch.float64) / (1 + math.e)
    accept(steps.weights[0, 0, 0], expected, expected)
    total = torch.tensor([math.log(1 + math.e)], dtype=torch.float64)
    accept(steps.logsumexp[0, 0], total, total)


def test_equal_scores_give_the_mean_of_the_values():
    _, k, v = tensors()
    steps = reference(Call.of(torch.zeros(2, HEADS, 5, 11, dtype=torch.float64), k, v))
    mean = v.mean(-2, keepdim=True).repeat_interleave(HEADS // GROUPS, 1).expand_as(steps.output)
    accept(steps.output, mean, mean)


def test_one_visible_key_copies_its_value():
    q, k, v = tensors(7, 7)
    output = reference(Call.of(q, k, v, mask=hw.window(0, 0))).output
    assert torch.equal(output, v.repeat_interleave(HEADS // GROUPS, 1))


@pytest.mark.parametrize("mask", every_mask(), ids=identity)
def test_every_step_equals_a_loop_over_pairs(mask):
    q, k, v = tensors()
    call = Call.of(q, k, v, mask=mask)
    steps, shape = reference(call), call.shape
    resolved = mask.resolve(shape)
    for b, h in ((0, 0), (1, 5), (0, 4)):
        for i in range(shape.queries):
            kv = h // (HEADS // GROUPS)
            where = [
                j
                for j in range(shape.keys)
                if bool(resolved.rule(*(torch.tensor(n) for n in (b, h, i + shape.offset, j))))
            ]
            if not where:
                assert not steps.output[b, h, i].any()
                assert not steps.weights[b, h, i].any()
                assert steps.logsumexp[b, h, i] == -math.inf
                continue
            index = [torch.tensor(n) for n in (b, h, i + shape.offset)]
            bias = [resolved.bias(*index, torch.tensor(j)) for j in where]
            scores = torch.stack(
                [
                    q[b, h, i] @ k[b, kv, j] / math.sqrt(11) + (0.0 if extra is None else extra)
                    for j, extra in zip(where, bias, strict=True)
                ]
            )
            weights = scores.exp() / scores.exp().sum()
            expected = sum(w * v[b, kv, j] for w, j in zip(weights, where, strict=True))
            accept(steps.output[b, h, i], expected, expected)
            accept(steps.weights[b, h, i, where], weights, weights)


def test_it_equals_pytorch_where_pytorch_is_right():
    q, k, v = tensors(groups=HEADS)
    ours = reference(Call.of(q, k, v)).output
    theirs = F.scaled_dot_product_attention(q, k, v)
    accept(ours, theirs, theirs)


@pytest.mark.parametrize("mask", every_mask(3, 5), ids=identity)
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_derivatives_are_right_to_second_order(mask, check):
    q, k = torch.randn(2, 6, 3, 2).double(), torch.randn(2, 3, 5, 2).double()
    v = torch.randn(2, 3, 5, 1).double()

    def output(*qkv):
        return reference(Call.of(*qkv, mask=mask)).output

    assert check(output, [t.requires_grad_() for t in (q, k, v)], fast_mode=True)


def test_dropout_is_refused():
    q, k, v = tensors()
    with pytest.raises(BadValue, match="expected 0 for the exact reference"):
        reference(Call.of(q, k, v, dropout=0.1))


def test_keys_that_no_query_sees_never_touch_a_result():
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    clean = reference(Call.of(q, k, v, mask=hw.padding([3, 5])))
    for rows in (k, v):
        rows[0, :, 3], rows[0, :, 4] = torch.nan, torch.inf
    steps = reference(Call.of(q, k, v, mask=hw.padding([3, 5])))
    assert torch.equal(steps.output, clean.output)
    assert torch.equal(steps.weights, clean.weights)
