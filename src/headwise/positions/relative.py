"""Relative positions by the difference key - query: Shaw and Transformer-XL."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headwise.positions.absolute import sinusoids
from headwise.positions.position import ClippedKeyValues, Position, PositionIds, Stage
from headwise.positions.relative_terms import RelativeTerms
from headwise.shapes import AttentionShape, check_integer


class Shaw(Position):
    """A learned vector for the distance from query i to key j, added to key j and maybe value j.

    e_ij = q_i · (k_j + a_{j-i}) · scale and output_i = sum_j w_ij (v_j + b_{j-i}). The distance is
    clipped to [-max_distance, max_distance]; all heads share the vectors, as in the paper.

    Args:
        max_distance: k of the paper; larger distances use the vector of this distance.
        head_dim: the head dim D.
        value_dim: Dv, if vectors are also added to the values; None adds vectors to the keys only.

    Raises:
        BadType, BadValue: if a size is not an integer or too small, or, when called, not D or Dv.

    Source: Shaw et al. 2018, equations 3 to 5. The vectors are initialised from a normal
        distribution of standard deviation 1/sqrt(D).

    Example:
        >>> Shaw(2, 4).table.shape
        torch.Size([5, 4])
    """

    def __init__(self, max_distance: int, head_dim: int, *, value_dim: int | None = None) -> None:
        super().__init__()
        max_distance = check_integer("Shaw", "max_distance", max_distance, 0)
        head_dim = check_integer("Shaw", "head_dim", head_dim, 1)
        if value_dim is not None:
            value_dim = check_integer("Shaw", "value_dim", value_dim, 1)
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
        far = self.max_distance
        wide = torch.promote_types(like.dtype, torch.float32)
        table = self.table.double().T  # gradients of a shared entry are summed in float64
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
        """Return the table index of each pair: key minus query, clipped, counted from 0."""
        far = self.max_distance
        return (key[None] - query[:, None]).clamp(-far, far) + far


AT_ONCE = 128  # the most distances whose sinusoids are in memory at once


class TransformerXL(Position):
    """Scores from content and distance, each with a learned bias per head.

    score_ij = ((q_i + u)·k_j + (q_i + v)·r_{i-j}) · scale, where r_d is a learned projection of the
    sinusoids of the distance d = i - j; it is exact for keys behind and ahead.

    Args:
        num_heads: the number of heads H.
        head_dim: the head dim D.
        embed_dim: the size of the sinusoids; None means H · D.

    Raises:
        BadType, BadValue: if a size is not an integer >= 1, or, when called, not H or D.

    Source: Dai et al. 2019, section 3.3; its u, v, W_{k,R} and R are `u`, `v`, `projection` and
        the sinusoids.

    Example:
        >>> TransformerXL(2, 4).u.shape
        torch.Size([2, 4])
    """

    stages = frozenset({Stage.CONTENT, Stage.SCORES})

    def __init__(self, num_heads: int, head_dim: int, *, embed_dim: int | None = None) -> None:
        super().__init__()
        num_heads = check_integer("TransformerXL", "num_heads", num_heads, 1)
        head_dim = check_integer("TransformerXL", "head_dim", head_dim, 1)
        self.embed_dim = num_heads * head_dim if embed_dim is None else embed_dim
        check_integer("TransformerXL", "embed_dim", self.embed_dim, 1)
        self.u = nn.Parameter(torch.empty(num_heads, head_dim))
        self.v = nn.Parameter(torch.empty(num_heads, head_dim))
        self.projection = nn.Parameter(torch.empty(num_heads, head_dim, self.embed_dim))
        for parameter in (self.u, self.v):
            nn.init.normal_(parameter, std=0.02)
        nn.init.xavier_uniform_(self.projection.view(num_heads * head_dim, self.embed_dim))

    def content(self, q: Tensor, k: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor]:
        return q + self.u.to(q.dtype)[:, None], k

    def bias(self, q: Tensor, query: PositionIds, key: PositionIds, scale: float) -> Tensor:
        n, m = len(query), len(key)
        if not n or not m:
            return q.new_zeros(1, 1, n, m, dtype=torch.promote_types(q.dtype, torch.float32))
        low = int((key.min() - query.max()).item())
        difference = torch.arange(low, int((key.max() - query.min()).item()) + 1, device=q.device)
        terms, index = self.relative(difference, q, scale), key[None] - query[:, None] - low
        if terms.vectors is not None and m * q.shape[3] < len(difference):  # few, distant keys
            rows = (q.to(terms.vectors.dtype) + self.v[:, None]) * scale
            return torch.einsum("bhnd,hnmd->bhnm", rows, terms.vectors[:, index])
        return terms.products(q, scale).gather(-1, index.expand(*q.shape[:2], n, m))

    def relative(self, difference: PositionIds, like: Tensor, scale: float) -> RelativeTerms:
        """Return the vectors r_d for d = query - key, and the shift v of the query."""
        wide = torch.promote_types(like.dtype, torch.float32)
        return RelativeTerms(self._vectors(difference, wide), self.v.to(wide))

    def _vectors(self, difference: PositionIds, dtype: torch.dtype) -> Tensor:
        """Return r_d, (H, T, D), with each vector contiguous in a column."""
        matrix = self.projection.to(dtype).flatten(0, 1)

        def waves(some: Tensor) -> Tensor:
            return sinusoids(-some, self.embed_dim, 10000.0).to(dtype).mT

        if torch.is_grad_enabled() and matrix.requires_grad:  # backward needs all sinusoids
            columns = matrix @ _filled(difference, self.embed_dim, dtype, waves)
        else:
            columns = _filled(difference, len(matrix), dtype, lambda some: matrix @ waves(some))
        return torch.unflatten(columns, 0, self.v.shape).mT

    def expected_sizes(self) -> dict[str, int]:
        return {"H": self.u.shape[0], "D": self.u.shape[1]}

    def extra_repr(self) -> str:
        return f"{self.u.shape[0]}, {self.u.shape[1]}, embed_dim={self.embed_dim}"


def _filled(
    places: Tensor, height: int, dtype: torch.dtype, make: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the columns of all places (height, T), computed in batches to save memory.

    While compiling, all columns are computed at once, so the graph serves any number of places.
    """
    if torch.compiler.is_compiling():
        return make(places)
    columns = torch.empty(height, len(places), dtype=dtype, device=places.device)
    for first in range(0, len(places), AT_ONCE):
        columns[:, first : first + AT_ONCE] = make(places[first : first + AT_ONCE])
    return columns
