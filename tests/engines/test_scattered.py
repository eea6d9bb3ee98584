"""Patterns of small scattered blocks, and lengths above the range of 16-bit integers."""

import pytest
import torch

import headwise as hw
from headwise.call import Call
from headwise.engines import best
from headwise.engines.tiled.eligibility import SCATTERED, sampled_share
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept

SCATTERS = [
    hw.random_blocks(64, 3, seed=1),
    hw.window(64, 64) | hw.random_blocks(64, 2, seed=2) | hw.global_tokens([0]),
    hw.block_sparse(torch.eye(64, dtype=torch.bool).roll(7, 0), 64),
]


@pytest.mark.parametrize("mask", SCATTERS, ids=str)
def test_a_scattered_pattern_is_run_by_its_tiles(mask):
    q = torch.zeros(()).expand(1, 2, 4096, 4)
    call = Call.of(q, q, q, mask=mask)
    assert sampled_share(call) <= SCATTERED
    assert hw.plan(q, q, q, mask=mask).engine == "tiled"


@pytest.mark.parametrize(
    "mask", [hw.full(), hw.causal(), hw.random_blocks(64, 40, seed=1)], ids=str
)
def test_a_pattern_that_leaves_much_is_not(mask):
    q = torch.zeros(()).expand(1, 2, 1024, 4)
    assert sampled_share(Call.of(q, q, q, mask=mask)) > SCATTERED
    assert hw.plan(q, q, q, mask=mask).engine == "sdpa"


def test_an_estimate_of_few_blocks_is_exact_where_it_sees_all():
    q = torch.zeros(1, 1, 512, 1)
    call = Call.of(q, q, q, mask=hw.block_sparse(torch.eye(8, dtype=torch.bool), 64))
    assert sampled_share(call) == call.allowed().double().mean().item()


@pytest.mark.parametrize("engine", ["rows", "tiled", "sdpa", "eager"])
def test_case_50_more_keys_than_16_bits_count(engine):
    """The last keys of 65537 are the ones seen, so that an index that wraps is seen."""
    torch.manual_seed(1)
    q, k, v = torch.randn(1, 2, 3, 5), torch.randn(1, 2, 65537, 5), torch.randn(1, 2, 65537, 7)
    mask = hw.causal() & hw.window(40, 0) & hw.padding([65536])
    call = Call.of(q, k, v, mask=mask)
    found = hw.attend(q, k, v, mask=mask, engine=engine)
    accept(found, reference(call, torch.float32).output, reference(call).output)


def test_global_tokens_that_lie_in_every_tile_are_lines() -> None:
    """64 of them anywhere among 8192 tokens leave no tile empty, and hold few of the pairs."""
    chosen = torch.randperm(8192, generator=torch.Generator().manual_seed(2))[:64].sort().values
    q = torch.empty(1, 1, 8192, 4)
    call = Call.of(q, q, q, mask=hw.window(64, 64) | hw.global_tokens(chosen.tolist()))
    assert best(call).NAME == "tiled"
