"""First and second derivatives of the reference and of eager, for every mask there is."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from headwise.call import Call
from headwise.engines import eager
from headwise.masks import (
    MASKS,
    Mask,
    appended,
    causal,
    from_tensor,
    full,
    padding,
    window,
)
from headwise.positions import POSITIONS, Learned, NoPosition, Position, Sinusoidal
from headwise.reference import reference

BATCH, HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 1, 2, 3, 5, 2, 3

MASKED: dict[Callable[..., Mask], Mask] = {
    appended: appended(causal(), 1),
    causal: causal(),
    from_tensor: from_tensor(torch.tensor([[0.3, -torch.inf, 1.1, 0.2, -0.4]] * QUERIES), "q k"),
    full: full(),
    padding: padding([3]),
    window: window(1, 0),
}
POSITIONED: dict[type[Position], Position] = {
    Learned: Learned(KEYS, DIM).double(),
    NoPosition: NoPosition(),
    Sinusoidal: Sinusoidal(DIM),
}


def run_eager(call: Call) -> Tensor:
    return eager.run(call).output


def run_reference(call: Call) -> Tensor:
    return reference(call).output


def test_every_mask_and_position_is_tried() -> None:
    assert set(MASKED) == set(MASKS)
    assert set(POSITIONED) == set(POSITIONS)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = ((QUERIES, DIM), (KEYS, DIM), (KEYS, VALUE_DIM))
    q, k, v = (
        torch.randn(BATCH, HEADS, *shape, generator=draw, dtype=torch.float64) for shape in shapes
    )
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def function(run: Callable[[Call], Tensor], mask: Mask, position: Position):
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        placed = position(q, KEYS - QUERIES), position(k)
        return run(replace(Call.of(q, k, v, mask=mask), q=placed[0], k=placed[1]))

    return attention


@pytest.mark.parametrize("mask", MASKED.values(), ids=[make.__name__ for make in MASKED])
@pytest.mark.parametrize("run", [run_eager, run_reference])
def test_first_and_second_derivatives(run, mask: Mask) -> None:
    attention = function(run, mask, NoPosition())
    assert gradcheck(attention, inputs())
    assert gradgradcheck(attention, inputs())


@pytest.mark.parametrize("make", POSITIONED, ids=lambda make: make.__name__)
@pytest.mark.parametrize("run", [run_eager, run_reference])
def test_derivatives_with_positions(run, make) -> None:
    attention = function(run, causal(), POSITIONED[make])
    assert gradcheck(attention, inputs())
    assert gradgradcheck(attention, inputs())
