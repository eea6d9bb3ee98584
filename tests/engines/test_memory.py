"""With many pairs, `auto` creates no tensor of the size of the scores, forward or backward."""

from itertools import product

import pytest
import torch

import headwise as hw
from benchmarks.combinations import DIM, HEADS, MASKS, POSITIONS
from tests.examples import Largest

L = 4096
PAIRS = L * L

FAST = {("padding at the end", "no position"), ("causal | window", "Rotary")}
COMBINATIONS = [
    pytest.param(*names, marks=[] if names in FAST else [pytest.mark.slow])
    for names in product(MASKS, POSITIONS)
]


@pytest.mark.parametrize(("mask", "position"), COMBINATIONS)
def test_nothing_as_large_as_the_scores_of_one_head_is_made(mask: str, position: str) -> None:
    rows = [torch.randn(1, HEADS, L, DIM, requires_grad=True) for _ in range(3)]
    made = MASKS[mask](L)
    with Largest() as largest:
        output = hw.attend(*rows, mask=made, position=POSITIONS[position]())
        torch.autograd.grad(output.sum(), rows)
    assert largest.numbers <= PAIRS // 2


def test_a_mask_written_out_would_be_noticed() -> None:
    rows = [torch.zeros(1, 1, L, 8) for _ in range(3)]
    with Largest() as largest, torch.no_grad():
        hw.attend(*rows, mask=hw.prefix(L // 3), engine="sdpa")
    assert largest.numbers >= PAIRS
