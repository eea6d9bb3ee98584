"""Positions against the formulas of their papers."""

import math

import pytest
import torch

import headwise as hw
from headwise.errors import BadValue
from headwise.positions import POSITIONS
from headwise.verify.budget import accept


@pytest.mark.parametrize("offset", [0, 3, -2])
@pytest.mark.parametrize("embed_dim", [1, 2, 7, 8])
def test_sinusoidal_is_the_formula_of_the_paper(embed_dim, offset):
    def entry(pos: int, j: int) -> float:
        angle = pos / 10000 ** ((j - j % 2) / embed_dim)
        return math.cos(angle) if j % 2 else math.sin(angle)

    expected = torch.tensor(
        [[entry(offset + i, j) for j in range(embed_dim)] for i in range(5)], dtype=torch.float64
    )
    got = hw.Sinusoidal(embed_dim).embed(torch.zeros(2, 5, embed_dim), offset)
    accept(got, expected.float()[None].expand(2, -1, -1), expected[None].expand(2, -1, -1))


def test_sinusoidal_stays_exact_at_far_positions():
    position = 2**20 + 1
    got = hw.Sinusoidal(6).embed(torch.zeros(1, 1, 6), position)[0, 0]
    exact = torch.tensor([position / 10000 ** (i / 6) for i in (0, 2, 4)], dtype=torch.float64)
    oracle = torch.stack((exact.sin(), exact.cos()), -1).flatten()
    accept(got, oracle.float(), oracle)


def test_learned_adds_rows_of_its_table_and_learns():
    position = hw.Learned(11, 3)
    x = torch.randn(2, 5, 3)
    out = position(x, offset=4)
    assert torch.equal(out, x + position.table[4:9])
    out.sum().backward()
    assert position.table.grad.sum(1).tolist() == [0] * 4 + [6] * 5 + [0] * 2


def test_no_position_leaves_the_input_alone():
    x = torch.randn(2, 5, 3)
    assert hw.NoPosition()(x) is x


@pytest.mark.parametrize("make", [lambda: hw.Sinusoidal(3), lambda: hw.Learned(7, 3)])
def test_the_callers_tensor_is_never_written_to(make):
    x = torch.randn(2, 5, 3)
    before = x.clone()
    make()(x)
    assert torch.equal(x, before)


def test_every_position_is_in_the_catalogue_and_alphabetical():
    assert [p.__name__ for p in POSITIONS] == sorted(p.__name__ for p in POSITIONS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hw.Sinusoidal(0), "embed_dim must be >= 1, got 0"),
        (lambda: hw.Sinusoidal(4, base=0.5), "base must be above 1, got 0.5"),
        (lambda: hw.Learned(0, 4), "max_positions must be >= 1, got 0"),
        (lambda: hw.Learned(4, 0), "embed_dim must be >= 1, got 0"),
        (lambda: hw.Sinusoidal(4)(torch.zeros(1, 2, 3)), "for embed_dim 4, got an input of size 3"),
        (lambda: hw.Learned(4, 3)(torch.zeros(1, 5, 3)), r"has 0 to 3; make it longer with Lea"),
        (lambda: hw.Learned(4, 3)(torch.zeros(1, 2, 3), -1), "positions -1 to 0 were asked for"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(BadValue, match=message):
        make()
