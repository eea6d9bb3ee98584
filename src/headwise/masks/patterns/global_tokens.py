"""Global tokens: chosen tokens to which every query attends and which attend to every key."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks.arguments import check_integers, without_numbers
from headwise.masks.mask import Mask, Tile, zero_index
from headwise.shapes import (
    AttentionShape,
    Index,
    Truth,
    broadcasts,
    check_boolean,
    check_dense,
    describe,
)


@dataclass(frozen=True, repr=False, eq=False)
class GlobalTokens(Mask):
    """The mask of `global_tokens`."""

    chosen: Tensor  # (B or 1, n), True on the chosen positions, counted from 0
    symmetric: bool
    whole: bool  # whether `chosen` covers all keys

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        seen = self._is_chosen(b, k)
        return seen | self._is_chosen(b, q) if self.symmetric else seen

    def tile(self, q: range, k: range) -> Tile:
        keys, queries = self._kind(k), self._kind(q) if self.symmetric else Tile.EMPTY
        if Tile.FULL in (keys, queries):
            return Tile.FULL
        return Tile.EMPTY if keys is queries is Tile.EMPTY else Tile.MIXED

    @property
    def name(self) -> str:
        side = "" if self.symmetric else ", symmetric=False"
        if len(self.chosen) == 1 and not self.whole and not without_numbers(self.chosen):
            return f"global_tokens({self.chosen[0].nonzero()[:, 0].tolist()}{side})"
        return f"global_tokens(<bool {tuple(self.chosen.shape)}>{side})"

    def required_sizes(self) -> dict[str, int]:
        return dict(zip(("B", "Lk"), self.chosen.shape, strict=True)) if self.whole else {}

    def resolve(self, shape: AttentionShape) -> Mask:
        batch, keys = self.chosen.shape
        if not broadcasts(batch, shape.batch) or (self.whole and keys != shape.keys):
            raise BadValue(
                "global_tokens: made for (B, Lk) = {expected}, called with {got}; pass one row "
                "for each sample, with one entry for each key",
                expected=(batch, keys),
                got=(shape.batch, shape.keys),
            )
        return self

    def _is_chosen(self, b: Index, position: Index) -> Truth:
        chosen = self.chosen.to(position.device)
        last = chosen.shape[1] - 1
        if last < 0:
            return torch.zeros_like(position, dtype=torch.bool)
        row = b if len(chosen) > 1 else zero_index(b)
        inside = (position >= 0) & (position <= last)
        return inside & chosen[row, position.clamp(0, last)]

    def _kind(self, positions: range) -> Tile:
        part = self.chosen[:, max(positions[0], 0) : max(positions[-1] + 1, 0)]
        return Tile.of(part, part.shape[1] == len(positions))


def global_tokens(chosen: Sequence[int] | Tensor, *, symmetric: bool = True) -> Mask:
    """Let every query attend to the chosen tokens and, if symmetric, these attend to every key.

    Longformer's pattern is ``window(w // 2, w // 2) | global_tokens(chosen)``.

    Args:
        chosen: positions that are the same in every sample, or a boolean tensor (Lk,) or (B, Lk)
            that is True on the chosen tokens.
        symmetric: whether a chosen token also attends to every key.

    Raises:
        BadType, BadValue: if ``chosen`` is neither, a position is negative or above 2^31 - 1,
            ``symmetric`` is not a boolean, or, when called, B or Lk do not fit.

    Source: Beltagy et al. 2020 (Longformer), section 3.1, global attention.

    Example:
        >>> print(global_tokens([1]).draw(4))
        · ■ · ·
        ■ ■ ■ ■
        · ■ · ·
        · ■ · ·
    """
    check_boolean(
        "global_tokens", "symmetric", symmetric, Text("False adds no keys for the tokens")
    )
    if isinstance(chosen, Tensor):
        check_dense("global_tokens", chosen)
        if chosen.dtype != torch.bool or chosen.dim() not in (1, 2):
            raise BadType(
                "global_tokens: expected positions or booleans (Lk,) or (B, Lk), got {got}",
                got=describe(chosen),
            )
        return GlobalTokens(chosen if chosen.dim() == 2 else chosen[None], symmetric, True)
    way_out = Text("0 is the first token")
    positions = check_integers("global_tokens", Text("position"), chosen, way_out)
    row = torch.zeros(1, max(positions, default=-1) + 1, dtype=torch.bool)
    row[0, positions] = True
    return GlobalTokens(row, symmetric, False)
