"""Every mask under `torch.compile`, compared with the oracle.

`test_tiled_operator` runs these tests. During compilation, the content of a tensor is unknown, and
no random number generator can be created.
"""

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.call import Call
from headwise.engines import best
from headwise.masks import Mask
from tests.engines.compiled import check
from tests.examples import every_mask, identity, tensors

torch.set_num_threads(1)
torch.manual_seed(0)
SHORT, LONG = 17, 601
"""Lengths that are multiples of nothing, the second so long that what is sparse is for tiled."""


def masks(length: int, batch: int) -> list[Mask]:
    """Every mask that there is, alone or with another."""
    half, blocks = length // 2, -(-length // 4)
    return [
        *every_mask(length, length, batch),
        hw.global_tokens([0, half]),
        hw.window(5, 1) & hw.documents([half, length - half]),
        hw.block_sparse(torch.rand(blocks, blocks) > 0.6, 4),
        hw.random_blocks(4, 2, seed=3),
        hw.lsh(2, chunk=4, seed=1),
        hw.padding(([half, length] * batch)[:batch]) & hw.causal() & hw.lsh(1, chunk=4, seed=1),
        hw.causal() & hw.lsh(1, chunk=4, seed=2, own=False),
    ]


@pytest.fixture(autouse=True)
def from_the_start() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(mask: Mask, length: int, batch: int) -> None:
    """Hold one compiled attention and its gradients to the reference."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attend(q, k, v, mask=mask)

    qkv = tensors(length, length, dtype=torch.float32, batch=batch)
    found = torch.compile(attend, fullgraph=True, backend="eager")(*qkv)
    check([found], Call.of(*qkv, mask=mask))


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(mask, id=identity(mask), marks=() if number % 2 else pytest.mark.slow)
        for number, mask in enumerate(masks(SHORT, 2))
    ],
)
def test_a_short_sequence(mask: Mask) -> None:
    compiled(mask, SHORT, 2)


@pytest.mark.slow
@pytest.mark.parametrize("mask", masks(LONG, 1), ids=identity)
def test_a_long_sequence(mask: Mask) -> None:
    compiled(mask, LONG, 1)


@pytest.mark.parametrize(
    "mask",
    [
        hw.window(9, 9) & hw.documents([LONG - 300, 300]),
        hw.window(9, 9) & hw.padding([LONG - 7]) & hw.block_sparse(torch.ones(3, 3).bool(), 256),
        hw.window(9, 9) & ~hw.random_blocks(16, 1, seed=3),
        hw.window(9, 9) & hw.lsh(2, chunk=4, seed=1),
    ],
    ids=identity,
)
def test_a_long_sequence_for_tiled(mask: Mask) -> None:
    qkv = tensors(LONG, LONG, dtype=torch.float32, batch=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert best(Call.of(*qkv, mask=mask)).NAME == "tiled"
    compiled(mask, LONG, 1)
