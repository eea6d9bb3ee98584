"""What is measured: each case has contenders of the same work, ours and the peers'."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

import headwise as hw

OURS, PEER, ROOF = "headwise", "torch", "matrix multiply"
Contenders = Mapping[str, Callable[[], torch.Tensor]]


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        name: what a person calls it.
        flops: of the work itself, forward.
        build: from a length and a dtype to the contenders, on the same numbers whatever the dtype;
            the same code is gated at a small length and measured at ``length``.
        length: L of the measurement.
    """

    name: str
    flops: Callable[[int], int]
    build: Callable[[int, torch.dtype], Contenders]
    length: int


HEADS, DIM = 8, 64
EMBED = HEADS * DIM


def _drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """The same random numbers in every dtype."""
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def _dense(length: int, dtype: torch.dtype) -> Contenders:
    q, k, v = _drawn(3, 1, HEADS, length, DIM, dtype=dtype).unbind()
    return {
        OURS: lambda: hw.attend(q, k, v),
        PEER: lambda: F.scaled_dot_product_attention(q, k, v),
    }


def _causal(length: int, dtype: torch.dtype) -> Contenders:
    q, k, v = _drawn(3, 1, HEADS, length, DIM, dtype=dtype).unbind()
    mask = hw.causal()
    return {
        OURS: lambda: hw.attend(q, k, v, mask=mask),
        PEER: lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    }


def _module(length: int, dtype: torch.dtype, weights: bool) -> Contenders:
    ours = hw.MultiheadAttention(EMBED, HEADS, batch_first=True).to(dtype).eval()
    theirs = torch.nn.MultiheadAttention(EMBED, HEADS, batch_first=True).to(dtype).eval()
    theirs.load_state_dict(ours.state_dict())
    x = _drawn(1, length, EMBED, dtype=dtype)
    return {
        OURS: lambda: ours(x, x, x, need_weights=weights)[0],
        PEER: lambda: theirs(x, x, x, need_weights=weights)[0],
    }


def _pairs(length: int) -> int:
    return 4 * HEADS * DIM * length * length


def _half(length: int) -> int:
    return _pairs(length) // 2


def _with_projections(length: int) -> int:
    return _pairs(length) + 8 * EMBED * EMBED * length


CASES = (
    Case("attend, dense", _pairs, _dense, 4096),
    Case("attend, causal", _half, _causal, 4096),
    Case("module, no weights", _with_projections, lambda n, t: _module(n, t, False), 2048),
    Case("module, averaged weights", _with_projections, lambda n, t: _module(n, t, True), 2048),
)
