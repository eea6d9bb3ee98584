"""The tiled engine as an operator: compiled, exported, and its masks as numbers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import headwise as hw
from headwise.call import Call
from headwise.engines import tiled
from headwise.engines.tiled.encoding import MASKS, decode, encode, known
from headwise.engines.tiled.operator import operator
from headwise.errors import BadValue
from headwise.masks import Mask, Tile
from headwise.masks.lsh import Lsh
from headwise.masks.random_blocks import RandomBlocks
from tests.examples import (
    HEADS,
    accept_with_gradients,
    every_mask,
    every_position,
    identity,
    tensors,
)


class Own(Mask):
    """A mask that headwise does not know."""

    def rule(self, b, h, q, k):
        del b, h
        return q >= k

    def tile(self, q, k):
        del q, k
        return Tile.MIXED

    @property
    def name(self):
        return "own()"


class OwnBias(Own):
    @property
    def biased(self):
        return True

    def bias(self, b, h, q, k):
        del b, h
        return (q - k).float()


@pytest.mark.parametrize("mask", every_mask(), ids=identity)
def test_a_mask_written_as_numbers_is_read_back(mask):
    call = Call.of(*tensors(), mask=mask)
    numbers, held = encode(call.mask)
    again = decode(numbers, held)
    assert known(call.mask)
    assert all(type(number) is int for number in numbers)
    assert again.name == call.mask.name
    assert torch.equal(again.dense(call.frame), call.mask.dense(call.frame))
    assert encode(again)[0] == numbers


def test_every_class_of_mask_has_a_number():
    def below(kind):
        return {kind, *(each for sub in kind.__subclasses__() for each in below(sub))}

    own = {kind for kind in below(Mask) if kind.__module__.startswith("headwise.masks")}
    assert own - {Mask, RandomBlocks, Lsh} == set(MASKS)  # these two resolve to others
    assert [kind.__name__ for kind in MASKS] == sorted(kind.__name__ for kind in MASKS)


def test_what_is_no_mask_of_ours_is_refused():
    with pytest.raises(BadValue, match=r"mask: Own is none of headwise's own classes"):
        encode(Own() & hw.causal())
    with pytest.raises(BadValue, match=r"numbers: expected those of a mask, got 3"):
        decode([2, 3], [])
    assert not known(hw.per_head([hw.full(), Own()]))


def test_a_mask_of_somebody_else_runs_but_for_a_bias_that_cannot_be_seen_into():
    call = Call.of(*tensors(37, 37, dtype=torch.float32), mask=Own())
    accept_with_gradients(call, tiled.run(call))
    (reason,) = tiled.why_not(Call.of(*tensors(37, 37), mask=OwnBias()))
    assert reason.en == "it cannot see into the bias of OwnBias"


@pytest.mark.parametrize(
    "mask",
    [
        hw.window(5, 9),
        hw.padding([30, 0]) & hw.causal(),
        hw.window(3, 3) | hw.global_tokens([0, 40]),
        hw.block_sparse(torch.ones(HEADS, 5, 5).tril().bool(), 16),
    ],
    ids=identity,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck_finds_nothing(mask, dtype):
    q, k, _ = tensors(37, 67, dtype=dtype)
    v = torch.randn(k.shape, dtype=dtype, requires_grad=True)
    call = Call.of(q, k, v, mask=mask)
    found = torch.library.opcheck(
        operator, (q, k, v, *encode(call.mask), call.frame.offset, call.scale, None)
    )
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.slow
def test_it_compiles_whole():
    """In a process of its own: the checks of shapes under pytest cannot be compiled."""
    script = Path(__file__).with_name("compiled.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=script.parents[2]
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "test_dynamic",
        "test_lengths_that_are_known_only_when_it_runs",
        "test_auto_takes_it_for_a_long_window",
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"position": every_position()[1]}, "under torch.compile it takes no bias"),
        ({"mask": Own()}, "under torch.compile it knows headwise's own masks only, not Own"),
        ({"need": ["logsumexp"]}, "under torch.compile its logsumexp has no gradient; use"),
    ],
)
def test_what_the_operator_does_not_take_is_refused_while_compiling(arguments, reason, monkeypatch):
    call = Call.of(*tensors(37, 37), **arguments)
    assert not tiled.why_not(call)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    (found,) = tiled.why_not(call)
    assert found.en.startswith(reason)
