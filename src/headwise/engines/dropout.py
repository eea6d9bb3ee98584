"""Dropout as a mask that a hash computes, for any engine.

Whether dropout keeps a weight depends on a hash of the pair and of the call's seed. It is therefore
the same in every engine and in every order of evaluation. With Z the sum of e^s over all keys of a
query, and Z' the sum over the kept keys,

    1/(1-p) Σ_kept (e^s / Z) v = (output over the kept keys) · (Z' / Z) / (1-p)

so an engine that supports masks and logsumexp runs twice, and needs no dropout of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.masks import Mask, Tile
from headwise.shapes import Index, Truth

FIRST, SECOND = 0x85EBCA6B - (1 << 32), 0xC2B2AE35 - (1 << 32)
"""The two factors of MurmurHash3's finaliser, as signed 32-bit integers."""

KEYS = 0x5BD1E995  # makes the hash of a key differ from the hash of a query with the same index
CALLS = 1 << 31  # the number of seeds


@dataclass(frozen=True, repr=False)
class Keep(Mask):
    """The mask of the pairs that dropout keeps.

    Attributes:
        dropout: the probability of dropping a pair.
        number: the seed of the call; a tensor while compiling, which an operator reads at run time.

    Source: the finaliser of MurmurHash3 (Appleby, public domain), applied to sample, head and query
        one after the other, to the key, and to both together; the last shift is left out, since the
        highest bits decide.

    Example:
        >>> Keep(0.25, 1)
        keep(0.25, 1)
        >>> b = h = torch.zeros((), dtype=torch.long)
        >>> Keep(0.25, 1).rule(b, h, b, torch.arange(9)).int().tolist()
        [1, 1, 1, 1, 1, 1, 1, 0, 0]
    """

    dropout: float
    number: int | Tensor

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        row = _finished(b.to(torch.int32) + self.number)
        for index in (h, q):
            row = _finished(row ^ index.to(torch.int32))
        mixed = _mixed(row ^ _finished(k.to(torch.int32) + KEYS))
        threshold = round(self.dropout * 2**32) - 2**31
        if threshold >= 2**31:
            return torch.zeros_like(mixed, dtype=torch.bool)
        return mixed >= threshold

    def tile(self, q: range, k: range) -> Tile:
        return Tile.MIXED

    @property
    def name(self) -> str:
        return f"keep({self.dropout}, {self.number})"


def draw_call_seed() -> int | Tensor:
    """Draw the seed of one call from torch's generator; return a tensor while compiling."""
    number = torch.randint(CALLS, ())
    return number if torch.compiler.is_compiling() else int(number.item())


def with_dropout(call: Call, run: Callable[[Call], Result]) -> Result:
    """Run a call with dropout on an engine that lacks dropout but can return the logsumexp.

    All results except the output are computed from the weights before dropout.
    """
    keep = Keep(call.dropout, draw_call_seed())
    whole = run(replace(call, dropout=0.0, need=call.need | {"logsumexp"}))
    some = run(replace(call, dropout=0.0, mask=call.mask & keep, need=frozenset({"logsumexp"})))
    assert some.logsumexp is not None  # noqa: S101 - both calls need it
    assert whole.logsumexp is not None  # noqa: S101
    output = some.output * kept_share(some.logsumexp, whole.logsumexp, call.dropout)
    sums = whole.logsumexp if "logsumexp" in call.need else None
    return replace(whole, output=output.to(whole.output.dtype), logsumexp=sums)


def kept_share(some: Tensor, whole: Tensor, dropout: float) -> Tensor:
    """Return Z' / Z / (1 - p), (B, H, Lq, 1), from log Z' and log Z; 0 if no key is kept."""
    nothing = some == -torch.inf
    difference = torch.where(nothing, 0.0, some) - torch.where(nothing, 0.0, whole)
    factor = 0.0 if dropout == 1 else 1 / (1 - dropout)
    return torch.where(nothing, 0.0, difference.exp() * factor)[..., None]


def drops(mask: Mask) -> bool:
    """Return whether a mask contains a `Keep`, and so differs by sample and head.

    Example:
        >>> from headwise.masks import causal
        >>> drops(causal()), drops(causal() & Keep(0.5, 1))
        (False, True)
    """
    return any(isinstance(part, Keep) for part in mask.walk())


def _mixed(hashes: Tensor) -> Tensor:
    """Apply the finaliser without its last shift, in place."""
    hashes ^= (hashes >> 16).bitwise_and_(0xFFFF)
    hashes *= FIRST
    hashes ^= (hashes >> 13).bitwise_and_(0x7FFFF)
    hashes *= SECOND
    return hashes


def _finished(hashes: Tensor) -> Tensor:
    """Apply the whole finaliser, in place."""
    hashes = _mixed(hashes)
    hashes ^= (hashes >> 16).bitwise_and_(0xFFFF)
    return hashes
