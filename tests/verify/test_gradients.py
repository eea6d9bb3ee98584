"""First and second derivatives of the reference and of eager, for every mask there is."""

from collections.abc import Callable

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
    block_sparse,
    causal,
    chunked,
    dilated,
    documents,
    every,
    fixed,
    from_tensor,
    full,
    global_tokens,
    lsh,
    padding,
    per_head,
    prefix,
    random_blocks,
    strided,
    tree,
    window,
    window2d,
)
from headwise.positions import (
    POSITIONS,
    ALiBi,
    Learned,
    NoPosition,
    Position,
    Rotary,
    Shaw,
    Sinusoidal,
    Stage,
    T5Bias,
    TransformerXL,
)
from headwise.reference import reference

BATCH, HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 1, 2, 3, 5, 2, 3

MASKED: dict[Callable[..., Mask], Mask] = {
    appended: appended(causal(), 1),
    block_sparse: block_sparse(torch.eye(3).bool(), 2),
    causal: causal(),
    chunked: chunked(2),
    dilated: dilated(1, 1, step=2),
    documents: documents([3, 2]),
    every: every(2),
    fixed: fixed(2, 1),
    from_tensor: from_tensor(torch.tensor([[0.3, -torch.inf, 1.1, 0.2, -0.4]] * QUERIES), "q k"),
    full: full(),
    global_tokens: global_tokens([0]),
    lsh: lsh(1, seed=0, chunk=2, buckets=2),
    padding: padding([3]),
    per_head: per_head([causal(), full()]),
    prefix: prefix(2),
    random_blocks: random_blocks(2, 1, seed=0),
    strided: strided(2),
    tree: tree([-1, 0]),
    window: window(1, 0),
    window2d: window2d(1, 0, width=2),
}
POSITIONED: dict[type[Position], Position] = {
    ALiBi: ALiBi(HEADS),
    Learned: Learned(KEYS, DIM),
    NoPosition: NoPosition(),
    Rotary: Rotary(DIM, pairs="neighbours"),
    Shaw: Shaw(1, DIM, value_dim=VALUE_DIM),
    Sinusoidal: Sinusoidal(DIM),
    T5Bias: T5Bias(HEADS),
    TransformerXL: TransformerXL(HEADS, DIM, embed_dim=7),
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
    def attention(q: Tensor, k: Tensor, v: Tensor, *_parameters: Tensor) -> Tensor:
        placed = position(q, KEYS - QUERIES), position(k)
        inside = None if Stage.INPUT in position.stages else position
        return run(Call.of(*placed, v, mask=mask, position=inside))

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
    position = POSITIONED[make].double()
    with torch.no_grad():
        for parameter in position.parameters():
            parameter.copy_(torch.randn_like(parameter))
    arguments = (*inputs(), *position.parameters())
    attention = function(run, causal(), position)
    assert gradcheck(attention, arguments)
    assert gradgradcheck(attention, arguments)
