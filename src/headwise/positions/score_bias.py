"""Position encodings that add a bias to the scores: ALiBi and T5."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.positions.position import Position, PositionIds, Stage
from headwise.positions.relative_terms import RelativeTerms
from headwise.shapes import check_boolean, check_integer


class ALiBi(Position):
    """A fixed bias on the scaled scores: minus the distance times a slope per head.

    The slopes are those of the paper: 2^(-8/H), 2^(-16/H), ..., 2^-8 if H is a power of two;
    otherwise those of the next lower power of two, then every other slope of twice as many heads.

    Args:
        num_heads: the number of heads H.

    Raises:
        BadType, BadValue: if num_heads is not an integer >= 1, or, when called, not H.

    Source: Press et al. 2022, section 3; the slopes for other H follow the authors' code.

    Example:
        >>> [round(slope, 4) for slope in ALiBi(12).slopes().tolist()][8:]
        [0.7071, 0.3536, 0.1768, 0.0884]
    """

    stages, by_distance = frozenset({Stage.SCORES}), True

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        num_heads = check_integer("ALiBi", "num_heads", num_heads, 1)
        self.num_heads = num_heads

    def slopes(self) -> Float[Tensor, "h"]:
        """Return the slope of each head, in float64."""
        power = 2 ** math.floor(math.log2(self.num_heads))
        first = 2.0 ** (-8.0 / power * torch.arange(1, power + 1, dtype=torch.float64))
        twice = 2.0 ** (-8.0 / (2 * power) * torch.arange(1, 2 * power + 1, dtype=torch.float64))
        return torch.cat((first, twice[0::2][: self.num_heads - power]))

    def bias(self, q: Tensor, query: PositionIds, key: PositionIds, scale: float) -> Tensor:
        return self._at(query[:, None] - key[None], q)[None]

    def relative(self, difference: PositionIds, like: Tensor, scale: float) -> RelativeTerms:
        return RelativeTerms(numbers=self._at(difference, like))

    def _at(self, distance: Tensor, like: Tensor) -> Tensor:
        """Return the bias at distances of either sign, (H, ...)."""
        wide = torch.promote_types(like.dtype, torch.float32)
        slopes = self.slopes().to(like.device, wide)
        return -slopes.view(-1, *(1,) * distance.dim()) * distance.abs().to(wide)

    def expected_sizes(self) -> dict[str, int]:
        return {"H": self.num_heads}

    def extra_repr(self) -> str:
        return str(self.num_heads)


class T5Bias(Position):
    """A learned bias on the scaled scores, for each head and bucket of distances.

    Each near distance has its own bucket; far distances share buckets of logarithmic width, and all
    distances from max_distance on share the last bucket. If bidirectional, half of the buckets are
    for keys ahead; otherwise a key ahead counts as distance 0. T5 does not scale its scores: use
    ``scale=1.0``.

    Args:
        num_heads: the number of heads H.
        num_buckets: the total number of buckets.
        max_distance: the distance from which the last bucket is used.
        bidirectional: whether keys ahead have their own buckets.

    Raises:
        BadType, BadValue: if a size is not an integer or too small, bidirectional is not a boolean,
            or, when called, H differs.

    Source: Raffel et al. 2020 (T5), section 2.1. The table is initialised from a normal
        distribution of standard deviation 0.02.

    Example:
        >>> T5Bias(2).bucket(torch.tensor([-10, -1, 0, 1, 10])).tolist()
        [8, 1, 0, 17, 24]
    """

    stages, by_distance = frozenset({Stage.SCORES}), True

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        way_out = Text("T5's decoder uses False")
        check_boolean("T5Bias", "bidirectional", bidirectional, way_out)
        num_heads = check_integer("T5Bias", "num_heads", num_heads, 1)
        num_buckets = check_integer("T5Bias", "num_buckets", num_buckets, 4 if bidirectional else 2)
        max_distance = check_integer("T5Bias", "max_distance", max_distance, 1)
        near = num_buckets // (4 if bidirectional else 2)
        if max_distance <= near:
            raise BadValue(
                "T5Bias: max_distance must be above {near}, where logarithmic buckets begin, "
                "got {max_distance}; T5 uses 128",
                near=near,
                max_distance=max_distance,
            )
        self.num_heads, self.num_buckets = num_heads, num_buckets
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self.table = nn.Parameter(torch.empty(num_buckets, num_heads))
        nn.init.normal_(self.table, std=0.02)

    def bucket(self, relative: Tensor) -> Tensor:
        """Return the bucket for each difference key position - query position."""
        buckets = self.num_buckets // (2 if self.bidirectional else 1)
        ahead = (relative > 0).long() * buckets if self.bidirectional else 0
        distance = relative.abs() if self.bidirectional else (-relative).clamp(min=0)
        near = buckets // 2
        octaves = math.log(self.max_distance / near)
        growth = torch.log(distance.clamp(min=1).float() / near) / octaves
        far = (near + (growth * (buckets - near)).long()).clamp(max=buckets - 1)
        return ahead + torch.where(distance < near, distance, far)

    def bias(self, q: Tensor, query: PositionIds, key: PositionIds, scale: float) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        buckets = self.bucket(key[None] - query[:, None])  # (n, m)
        return self.table.to(wide)[buckets].permute(2, 0, 1)[None]

    def relative(self, difference: PositionIds, like: Tensor, scale: float) -> RelativeTerms:
        wide = torch.promote_types(like.dtype, torch.float32)
        table = self.table.double().T  # gradients of a shared entry are summed in float64
        return RelativeTerms(numbers=table[:, self.bucket(difference)].to(wide))

    def expected_sizes(self) -> dict[str, int]:
        return {"H": self.num_heads}

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads}, num_buckets={self.num_buckets}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )
