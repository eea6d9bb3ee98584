"""Several documents packed into one sequence."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.masks.base import Mask, Tile
from headwise.shapes import Frame, Index, Truth


@dataclass(frozen=True, repr=False, eq=False)
class Documents(Mask):
    """The mask of `documents`: a number for each position, (B or 1, Lk)."""

    ids: Tensor

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del h
        ids = self.ids.to(k.device)
        row = b if len(ids) > 1 else b.new_zeros(())
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

    def seams(self, stop: int) -> frozenset[int]:
        turns = (self.ids.diff(dim=1) != 0).any(0)[: max(stop - 1, 0)]
        return frozenset((turns.nonzero()[:, 0] + 1).tolist())

    @property
    def name(self) -> str:
        return f"documents(<{tuple(self.ids.shape)}>)"

    def resolve(self, frame: Frame) -> Mask:
        batch, keys = self.ids.shape
        if batch not in (1, frame.batch) or keys != frame.keys:
            raise BadValue(
                f"documents: made for (B, Lk) = {(batch, keys)}, called with "
                f"{(frame.batch, frame.keys)}; number every position of the keys",
                f"documents：按 (B, Lk) = {(batch, keys)} 构造，调用时为 "
                f"{(frame.batch, frame.keys)}；请给键的每个位置编号",
            )
        return self


def documents(parts: Sequence[int] | Tensor) -> Mask:
    """Each position sees its own document only. Add ``causal()`` for a language model.

    Args:
        parts: the lengths of the documents in the sequence, one after the other; or an integer
            tensor (Lk,) or (B, Lk) that numbers the document of each position.

    Raises:
        BadType: if it is neither.
        BadValue: if a length is negative, or, when called, if B or Lk do not fit.

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
        ids = parts[None] if parts.dim() == 1 else parts
        if ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
            raise BadType(
                "documents: expected integers (Lk,) or (B, Lk), got "
                f"{parts.dtype} {tuple(parts.shape)}",
                f"documents：应为整数 (Lk,) 或 (B, Lk)，收到 {parts.dtype} {tuple(parts.shape)}",
            )
        return Documents(ids.long())
    lengths = list(parts)
    if any(type(n) is not int or n < 0 for n in lengths):
        raise BadValue(
            f"documents: lengths must be integers >= 0, got {lengths!r}",
            f"documents：长度必须是 >= 0 的整数，收到 {lengths!r}",
        )
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.long))
    return Documents(numbers[None])
