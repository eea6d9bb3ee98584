"""Patterns with gaps, in which few pairs are allowed but hardly any tile is empty."""

import pytest
import torch

import headwise as hw
from headwise.call import Call
from headwise.engines import best
from headwise.engines.tiled.eligibility import SHARE, decomposed_share, nonempty_share
from headwise.masks.tiles import Tiles
from tests.examples import Largest

L = 8192
CAUSAL_COMB = hw.causal() & hw.dilated(100, 0, step=100)
COMBS = [
    *(hw.strided(n) for n in (16, 64, 90, 181, 200)),
    CAUSAL_COMB,
    hw.dilated(200, 200, step=40),
    hw.strided(90) & hw.padding([L - 9]),
    hw.per_head([hw.strided(90), CAUSAL_COMB]),
]


def called(mask, length=L):
    q = torch.zeros(()).expand(1, 2, length, 4)
    return Call.of(q, q, q, mask=mask)


@pytest.mark.parametrize("mask", COMBS, ids=str)
def test_a_comb_is_taken_apart(mask):
    assert best(called(mask)).NAME == "tiled"


@pytest.mark.parametrize("mask", COMBS[:6], ids=str)
def test_tiles_do_not_show_how_few_pairs_a_comb_has(mask):
    call = called(mask)
    assert nonempty_share(call) > SHARE
    least = Tiles.of(call.mask, call.shape).seen()[0].sum().item() / L**2
    assert (
        least <= decomposed_share(call) < 2 * least + 256 / L
    )  # blocks of rows are up to 256 tall


@pytest.mark.parametrize(
    "mask",
    [~hw.strided(64), ~hw.dilated(L, L, step=100), hw.full() & ~hw.dilated(0, 0, step=2)],
    ids=str,
)
def test_what_leaves_most_pairs_is_written_out_only_where_it_is_short(mask):
    assert best(called(mask, 1024)).NAME == "sdpa"
    assert best(called(mask)).NAME == "tiled"


def test_a_short_comb_is_written_out():
    assert best(called(hw.causal() & hw.dilated(100, 0, step=16), 700)).NAME == "sdpa"


def test_nothing_as_large_as_the_scores_is_made():
    q, k, v = torch.randn(3, 1, 1, L, 4).unbind()
    with Largest() as largest, torch.no_grad():
        hw.attend(q, k, v, mask=hw.strided(90))
    assert largest.numbers < L * L / 16
