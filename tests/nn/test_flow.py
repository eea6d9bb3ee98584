"""Variances of the signal and the gradient, in cases with a known value."""

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.nn.init import Flow, Layer, measure, t_fixup


def twice(x: Tensor) -> Tensor:
    return 2 * x


def half(x: Tensor) -> Tensor:
    return x / 2


def test_powers_of_two_are_exact() -> None:
    x = torch.randn(3, 5, 7)
    flow = measure([twice, twice, half], x)
    first, top = flow.signal[0], flow.gradient[-1]
    assert first == x.double().var().item()
    assert flow.signal == (first, 4 * first, 16 * first, 4 * first)
    assert flow.gradient == (4 * top, top, top / 4, top)


def test_the_seed_is_of_the_gradient_alone() -> None:
    x = torch.randn(5, 7)
    one, same, other = (measure([twice], x, seed=seed) for seed in (0, 0, 1))
    assert one == same
    assert one.gradient != other.gradient
    assert one.signal == other.signal


def test_nothing_is_left_behind() -> None:
    layer, x = nn.Linear(7, 5), torch.randn(3, 7)
    with torch.no_grad():
        flow = measure([layer], x)
    assert layer.weight.grad is None
    assert not x.requires_grad
    assert flow.signal[1] == layer(x).double().var().item()


def residual(attention: hw.MultiheadAttention) -> Layer:
    return lambda x: x + attention(x, x, x, need_weights=False)[0]


def test_t_fixup_keeps_a_deep_stack_quiet() -> None:
    """24 residual attentions without a norm: signal and gradient grow less, both ways."""
    depth = 24
    stack = [hw.MultiheadAttention(32, 4, batch_first=True) for _ in range(depth)]
    layers, x = [residual(each) for each in stack], torch.randn(2, 11, 32)
    before = measure(layers, x)
    for each in stack:
        t_fixup(each, depth)
    after = measure(layers, x)
    assert after.signal[-1] / after.signal[0] < 2 < before.signal[-1] / before.signal[0]
    assert after.gradient[0] / after.gradient[-1] < 2 < before.gradient[0] / before.gradient[-1]


def test_it_prints_as_a_table() -> None:
    flow = Flow((1.0, 0.25), (16.0, 1.0))
    assert str(flow).splitlines() == [
        "after layer     signal   gradient",
        "          0          1         16",
        "          1       0.25          1",
    ]


@pytest.mark.parametrize(
    ("layers", "x", "error", "message"),
    [
        ([], torch.ones(3), BadValue, "layers: expected at least one layer"),
        ([twice], torch.ones(3, dtype=torch.long), BadType, "x: expected a floating point tensor"),
        ([twice], torch.ones(1), BadValue, "x: the variance needs at least two entries"),
        ([twice, lambda x: (x, x)], torch.ones(3), BadType, r"layers\[1\]: .*, got tuple"),
    ],
)
def test_what_is_refused(
    layers: list[Layer], x: Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        measure(layers, x)
