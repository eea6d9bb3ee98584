"""Learned vectors for relative positions, for keys and for values."""

import torch
from torch import Tensor, nn

from headwise.positions.position import ClippedKeyValues, Position, PositionIds, Stage, check_size
from headwise.positions.relative import RelativeTerms


class Shaw(Position):
    """Adds to key j, and if asked to value j, a learned vector for its distance from query i.

    e_ij = q_i · (k_j + a_{j-i}) · scale and output_i = sum_j w_ij (v_j + b_{j-i}); the distance is
    clipped to [-max_distance, max_distance]; all heads share the vectors, as in the paper.

    Args:
        max_distance: k of the paper, the distance from which all are alike.
        head_dim: D.
        value_dim: Dv, to add to the values as well; None adds to the keys only.

    Raises:
        BadType: if a size is no integer.
        BadValue: if a size is too small, or, when called, if D or Dv is another.

    Source: Shaw et al. 2018, equations 3 to 5. The vectors start as normal noise of standard
        deviation 1/sqrt(D).

    Example:
        >>> Shaw(2, 4).table.shape
        torch.Size([5, 4])
    """

    def __init__(self, max_distance: int, head_dim: int, *, value_dim: int | None = None) -> None:
        super().__init__()
        check_size("Shaw", "max_distance", max_distance, 0)
        check_size("Shaw", "head_dim", head_dim)
        if value_dim is not None:
            check_size("Shaw", "value_dim", value_dim)
        self.max_distance = max_distance
        self.table = self._drawn(head_dim)
        self.value_table = None if value_dim is None else self._drawn(value_dim)
        added = () if value_dim is None else (Stage.VALUES,)
        self.stages = frozenset((Stage.SCORES, *added))

    def bias(self, q: Tensor, query: PositionIds, key: PositionIds, scale: float) -> Tensor:
        products = q @ self.table.to(q.dtype).T  # (B, H, n, 2k + 1)
        wide = products.to(torch.promote_types(q.dtype, torch.float32)) * scale
        index = self._clipped(query, key).expand(*q.shape[:2], -1, -1)
        return wide.gather(-1, index)

    def relative(self, difference: PositionIds, like: Tensor, scale: float) -> RelativeTerms:
        del scale
        far = self.max_distance
        wide = torch.promote_types(like.dtype, torch.float32)
        table = self.table.double().T  # so that what many differences share sums its gradient well
        return RelativeTerms(table[:, difference.clamp(-far, far) + far].T[None].to(wide))

    def clipped(self, k: Tensor, v: Tensor) -> ClippedKeyValues:
        behind, ahead = self.table.to(k.dtype)[[0, -1]]
        if self.value_table is None:
            return ClippedKeyValues(self.max_distance, (k + behind, k + ahead), (v, v))
        first, last = self.value_table.to(v.dtype)[[0, -1]]
        return ClippedKeyValues(self.max_distance, (k + behind, k + ahead), (v + first, v + last))

    def values(self, weights: Tensor, query: PositionIds, key: PositionIds) -> Tensor | None:
        if self.value_table is None:
            return None
        table = self.value_table.to(weights.dtype)
        index = self._clipped(query, key).expand_as(weights)
        shares = weights.new_zeros(*weights.shape[:-1], len(table))  # (B, H, n, 2k + 1)
        return shares.scatter_add(-1, index, weights) @ table

    def expected_sizes(self) -> dict[str, int]:
        values = {} if self.value_table is None else {"Dv": self.value_table.shape[1]}
        return {"D": self.table.shape[1], **values}

    def extra_repr(self) -> str:
        values = "" if self.value_table is None else f", value_dim={self.value_table.shape[1]}"
        return f"{self.max_distance}, {self.table.shape[1]}{values}"

    def _drawn(self, dim: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(2 * self.max_distance + 1, dim) / dim**0.5)

    def _clipped(self, query: PositionIds, key: PositionIds) -> Tensor:
        """Which vector each pair takes: key minus query, clipped, from 0."""
        far = self.max_distance
        return (key[None] - query[:, None]).clamp(-far, far) + far
