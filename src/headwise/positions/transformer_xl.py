"""Relative positions of Transformer-XL."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headwise.positions.position import Position, PositionIds, Stage, check_size
from headwise.positions.relative import RelativeTerms
from headwise.positions.sinusoidal import sinusoids
from headwise.shapes import AttentionShape

AT_ONCE = 128
"""Distances whose sinusoids are held at once."""


class TransformerXL(Position):
    """Scores from content and distance, each with a bias of its own for the head.

    score_ij = ((q_i + u)·k_j + (q_i + v)·r_{i-j}) · scale, where r_d is a learned projection of
    the sinusoids of the distance d = i - j; exact for keys behind and ahead.

    Args:
        num_heads: H.
        head_dim: D.
        embed_dim: the size of the sinusoids; None means H · D.

    Raises:
        BadType: if a size is no integer.
        BadValue: if a size is below 1, or, when called, if H or D is another.

    Source: Dai et al. 2019, section 3.3; u, v, W_{k,R} and R keep their names: `u`, `v`,
        `projection`, sinusoids.

    Example:
        >>> TransformerXL(2, 4).u.shape
        torch.Size([2, 4])
    """

    stages = frozenset({Stage.CONTENT, Stage.SCORES})

    def __init__(self, num_heads: int, head_dim: int, *, embed_dim: int | None = None) -> None:
        super().__init__()
        check_size("TransformerXL", "num_heads", num_heads)
        check_size("TransformerXL", "head_dim", head_dim)
        self.embed_dim = num_heads * head_dim if embed_dim is None else embed_dim
        check_size("TransformerXL", "embed_dim", self.embed_dim)
        self.u = nn.Parameter(torch.empty(num_heads, head_dim))
        self.v = nn.Parameter(torch.empty(num_heads, head_dim))
        self.projection = nn.Parameter(torch.empty(num_heads, head_dim, self.embed_dim))
        for parameter in (self.u, self.v):
            nn.init.normal_(parameter, std=0.02)
        nn.init.xavier_uniform_(self.projection.view(num_heads * head_dim, self.embed_dim))

    def content(self, q: Tensor, k: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor]:
        del shape
        return q + self.u.to(q.dtype)[:, None], k

    def bias(self, q: Tensor, query: PositionIds, key: PositionIds, scale: float) -> Tensor:
        n, m = len(query), len(key)
        if not n or not m:
            return q.new_zeros(1, 1, n, m, dtype=torch.promote_types(q.dtype, torch.float32))
        low = int((key.min() - query.max()).item())
        places = torch.arange(low, int((key.max() - query.min()).item()) + 1, device=q.device)
        met = self.relative(places, q, scale).products(q, scale)
        index = key[None] - query[:, None] - low
        return met.gather(-1, index.expand(*q.shape[:2], n, m))

    def relative(self, difference: PositionIds, like: Tensor, scale: float) -> RelativeTerms:
        """The vectors r_d of the distance d = query - key, and v, by which the query is shifted."""
        del scale
        wide = torch.promote_types(like.dtype, torch.float32)
        return RelativeTerms(self._vectors(difference, wide), self.v.to(wide))

    def _vectors(self, difference: PositionIds, dtype: torch.dtype) -> Tensor:
        """r_d, (H, T, D), a column of memory each."""
        matrix = self.projection.to(dtype).flatten(0, 1)

        def waves(some: Tensor) -> Tensor:
            return sinusoids(-some, self.embed_dim, 10000.0).to(dtype).mT

        if torch.is_grad_enabled() and matrix.requires_grad:  # which needs all sinusoids later
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
    """The columns of all places (height, T), some at a time: sinusoids are large in float64.

    What is compiled serves any number of places, and makes them at once.
    """
    if torch.compiler.is_compiling():
        return make(places)
    columns = torch.empty(height, len(places), dtype=dtype, device=places.device)
    for first in range(0, len(places), AT_ONCE):
        columns[:, first : first + AT_ONCE] = make(places[first : first + AT_ONCE])
    return columns
