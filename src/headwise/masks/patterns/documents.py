"""Several documents packed into one sequence."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks.arguments import INTEGERS, check_integers
from headwise.masks.mask import Mask, Tile, zero_index
from headwise.shapes import AttentionShape, Index, Truth, check_dense, check_integer


@dataclass(frozen=True, repr=False, eq=False)
class Documents(Mask):
    """The mask of `documents`: a number for each position, (B or 1, Lk).

    ``summed`` says that it was made from lengths, which messages then speak of.
    """

    ids: Tensor
    summed: bool = False

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del h
        ids = self.ids.to(k.device)
        row = b if len(ids) > 1 else zero_index(b)
        inside = (q >= 0) & (q < ids.shape[1])
        return inside & (ids[row, q.clamp(0, max(ids.shape[1] - 1, 0))] == ids[row, k])

    def tile(self, q: range, k: range) -> Tile:
        if q[0] < 0 or q[-1] >= self.ids.shape[1]:
            return Tile.MIXED
        ours = self.ids[:, q[0] : q[-1] + 1].aminmax(dim=1)
        theirs = self.ids[:, k[0] : k[-1] + 1].aminmax(dim=1)
        if bool(((ours.max < theirs.min) | (theirs.max < ours.min)).all()):
            return Tile.EMPTY
        one = (ours.min == ours.max) & (theirs.min == theirs.max) & (ours.min == theirs.min)
        return Tile.FULL if bool(one.all()) else Tile.MIXED

    def tile_boundaries(self, stop: int) -> frozenset[int]:
        turns = (self.ids.diff(dim=1) != 0).any(0)[: max(stop - 1, 0)]
        return frozenset((turns.nonzero()[:, 0] + 1).tolist())

    @property
    def name(self) -> str:
        return f"documents(<{tuple(self.ids.shape)}>)"

    def required_sizes(self) -> dict[str, int]:
        return dict(zip(("B", "Lk"), self.ids.shape, strict=True))

    def resolve(self, shape: AttentionShape) -> Mask:
        batch, keys = self.ids.shape
        if batch not in (1, shape.batch) or keys != shape.keys:
            reason = Text("number every position of the keys")
            if self.summed:
                reason = Text(
                    "the lengths sum to {keys}, and have to sum to Lk = {expected}",
                    keys=keys,
                    expected=shape.keys,
                )
            raise BadValue(
                "documents: made for (B, Lk) = {expected}, called with {got}; {reason}",
                expected=(batch, keys),
                got=(shape.batch, shape.keys),
                reason=reason,
            )
        return self


def documents(parts: Sequence[int] | Tensor) -> Mask:
    """Each position sees its own document only. Add ``causal()`` for a language model.

    Args:
        parts: the lengths of the documents in the sequence, one after the other; or an integer
            tensor (Lk,) or (B, Lk) that numbers the document of each position.

    Raises:
        BadType: if it is neither.
        BadValue: if a length is negative, if they sum to more than 2^31 - 1, or, when called, if B
            or Lk do not fit.

    Source: Krell et al. 2021, packing without cross-contamination.

    Example:
        >>> from headwise.masks import causal
        >>> print((documents([2, 3]) & causal()).draw(5))
        ■ · · · ·
        ■ ■ · · ·
        · · ■ · ·
        · · ■ ■ ·
        · · ■ ■ ■
    """
    if isinstance(parts, Tensor):
        check_dense("documents", parts)
        ids = parts[None] if parts.dim() == 1 else parts
        if ids.dim() != 2 or ids.dtype not in INTEGERS:
            raise BadType(
                "documents: expected integers (Lk,) or (B, Lk), got {parts_dtype} {parts_shape}",
                parts_dtype=parts.dtype,
                parts_shape=tuple(parts.shape),
            )
        return Documents(ids.long())
    empty = Text("a document of 0 is none")
    lengths = check_integers("documents", Text("length"), parts, empty)
    check_integer("documents", Text("the sum of the lengths"), sum(lengths), 0)
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.long))
    return Documents(numbers[None], summed=True)
