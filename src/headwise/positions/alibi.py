"""Attention with linear biases."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.positions.position import Position, PositionIds, Stage, check_size
from headwise.positions.relative import RelativeTerms


class ALiBi(Position):
    """Adds minus the distance, times a slope of the head, to the scaled scores. Nothing is learned.

    The slopes are those published: for H a power of two 2^(-8/H), 2^(-16/H), ..., 2^-8; otherwise
    those of the next lower power of two, then every other one of twice as many heads.

    Args:
        num_heads: H.

    Raises:
        BadType: if num_heads is no integer.
        BadValue: if num_heads is below 1, or, when called, if H is another.

    Source: Press et al. 2022, section 3; the rule for other H is that of the authors' code.

    Example:
        >>> [round(slope, 4) for slope in ALiBi(12).slopes().tolist()][8:]
        [0.7071, 0.3536, 0.1768, 0.0884]
    """

    stages = frozenset({Stage.SCORES})

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        check_size("ALiBi", "num_heads", num_heads)
        self.num_heads = num_heads

    def slopes(self) -> Float[Tensor, "h"]:
        """The slope of each head, in float64."""
        power = 2 ** math.floor(math.log2(self.num_heads))
        first = 2.0 ** (-8.0 / power * torch.arange(1, power + 1, dtype=torch.float64))
        twice = 2.0 ** (-8.0 / (2 * power) * torch.arange(1, 2 * power + 1, dtype=torch.float64))
        return torch.cat((first, twice[0::2][: self.num_heads - power]))

    def bias(self, q: Tensor, query: PositionIds, key: PositionIds, scale: float) -> Tensor:
        del scale
        return self._at(query[:, None] - key[None], q)[None]

    def relative(self, difference: PositionIds, like: Tensor, scale: float) -> RelativeTerms:
        del scale
        return RelativeTerms(numbers=self._at(difference, like))

    def _at(self, distance: Tensor, like: Tensor) -> Tensor:
        """The bias at distances, of either sign: (H, ...)."""
        wide = torch.promote_types(like.dtype, torch.float32)
        slopes = self.slopes().to(like.device, wide)
        return -slopes.view(-1, *(1,) * distance.dim()) * distance.abs().to(wide)

    def expected_sizes(self) -> dict[str, int]:
        return {"H": self.num_heads}

    def extra_repr(self) -> str:
        return str(self.num_heads)
