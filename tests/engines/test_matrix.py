"""Each mask with each position, key/value grouping, padding and dtype, on every possible engine.

The lengths are primes above the block size of the tiled engine, so there are several tiles. Each
combination computes the oracle once and compares the output and all gradients of every engine. The
fast tests combine every mask with every position; the other three properties alternate so that
each two of the five occur together. The slow tests run all combinations.
"""

from itertools import product

import pytest
import torch

import headwise as hw
from headwise.call import Call
from headwise.engines import ENGINES, eager, flex, tiled
from headwise.masks import Mask
from tests.examples import accept_with_gradients, every_mask, every_position, tensors

QUERIES, KEYS = 37, 71
HERE = [engine for engine in ENGINES if engine is not flex]
"""`flex` takes no gradient on a CPU and compiles for seconds: test_flex.py has its own matrix."""


def masks() -> list[Mask]:
    torch.manual_seed(2)
    hashed = hw.lsh(2, chunk=11, seed=3)
    return [*every_mask(QUERIES, KEYS), hashed, hw.causal() & hashed]


CELLS = list(
    product(
        range(len(masks())),
        range(len(every_position())),
        (1, 3),
        (False, True),
        (torch.float32, torch.bfloat16),
    )
)


def met(cell) -> bool:
    """Whether the fast suite has the cell: one of the eight of each mask and position."""
    mask, position, groups, padded, dtype = cell
    turn = (mask + 3 * position) % 8
    return (groups == 3, padded, dtype == torch.bfloat16) == (turn % 2, turn // 2 % 2, turn // 4)


def name(cell) -> str:
    mask, position, groups, padded, dtype = cell
    return f"{masks()[mask].name}-{every_position()[position]!r}-{groups}-{padded}-{dtype}"


def check(cell) -> None:
    number, place, groups, padded, dtype = cell
    mask, position = masks()[number], every_position()[place]
    torch.manual_seed(5)
    q, k, v = tensors(QUERIES, KEYS, groups=groups, dtype=dtype)
    if padded:
        mask = mask & hw.padding([KEYS - 18, 0])
    call = Call.of(q, k, v, mask=mask, position=position)
    able = [engine for engine in HERE if not list(engine.why_not(call))]
    assert {eager, tiled} <= set(able)
    accept_with_gradients(call, *(engine.run(call) for engine in able))


@pytest.mark.parametrize("cell", [c for c in CELLS if met(c)], ids=name)
def test_every_mask_with_every_position(cell):
    check(cell)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(every_position())))
@pytest.mark.parametrize("number", range(len(masks())))
def test_every_cell(number, place):
    for cell in CELLS:
        if cell[:2] == (number, place) and not met(cell):
            check(cell)


def test_the_fast_cells_meet_every_two():
    """Every value of one of the five meets every value of each other one."""
    fast = [cell for cell in CELLS if met(cell)]
    for one in range(5):
        for other in range(one):
            pairs = {(cell[one], cell[other]) for cell in CELLS}
            assert {(cell[one], cell[other]) for cell in fast} == pairs
