"""Absolute positions, added to the input: sinusoidal and learned."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.positions.position import (
    Inputs,
    Position,
    Stage,
    check_base,
    check_offset,
    check_width,
)
from headwise.shapes import check_integer


class Sinusoidal(Position):
    """Fixed sines and cosines of the position, added to the input, for any length.

    PE(pos, 2i) = sin(pos / base^(2i/E)) and PE(pos, 2i+1) = cos(pos / base^(2i/E)). The angles are
    computed in float64, and the sum is in the input's dtype. If E is odd, the last entry is a sine.

    Args:
        embed_dim: the size E of the input.
        base: the longest wavelength divided by 2 pi.

    Raises:
        BadType, BadValue: if embed_dim is not an integer >= 1, or base not a number above 1.

    Source: Vaswani et al. 2017, section 3.5.

    Example:
        >>> Sinusoidal(4).embed(torch.zeros(1, 2, 4))[0, 0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """

    stages = frozenset({Stage.INPUT})

    def __init__(self, embed_dim: int, *, base: float = 10000.0) -> None:
        super().__init__()
        embed_dim = check_integer("Sinusoidal", "embed_dim", embed_dim, 1)
        self.embed_dim = embed_dim
        self.base = check_base("Sinusoidal", base)

    def embed(self, x: Inputs, offset: int = 0) -> Inputs:
        check_width("Sinusoidal", self.embed_dim, x)
        check_offset("Sinusoidal", offset)
        positions = torch.arange(x.shape[-2], device=x.device) + offset
        return x + sinusoids(positions, self.embed_dim, self.base).to(x.dtype)

    def expected_sizes(self) -> dict[str, int]:
        return {"E": self.embed_dim}

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, base={self.base:g}"


def sinusoids(positions: Tensor, embed_dim: int, base: float) -> Float[Tensor, "l e"]:
    """Return PE for each position, sine and cosine alternating, in float64."""
    even = torch.arange(0, embed_dim, 2, device=positions.device, dtype=torch.float64)
    angle = positions.double()[:, None] * base ** (-even / embed_dim)
    pairs = torch.stack((angle.sin(), angle.cos()), dim=-1)
    return pairs.flatten(-2)[:, :embed_dim]


class Learned(Position):
    """A learned vector for each position, added to the input, for a fixed number of positions.

    The table is initialised with a standard deviation of 0.02, as in BERT and GPT-2.

    Args:
        max_positions: the number of positions.
        embed_dim: the size E of the input.

    Raises:
        BadType, BadValue: if a size is not an integer >= 1, or, when called, a position is outside
            the table.

    Source: Gehring et al. 2017 (ConvS2S), section 3.1; Devlin et al. 2019 (BERT).

    Example:
        >>> Learned(8, 4).embed(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 4])
    """

    stages = frozenset({Stage.INPUT})

    def __init__(self, max_positions: int, embed_dim: int) -> None:
        super().__init__()
        max_positions = check_integer("Learned", "max_positions", max_positions, 1)
        embed_dim = check_integer("Learned", "embed_dim", embed_dim, 1)
        self.table = nn.Parameter(torch.empty(max_positions, embed_dim))
        nn.init.normal_(self.table, std=0.02)

    def embed(self, x: Inputs, offset: int = 0) -> Inputs:
        positions, embed_dim = self.table.shape
        check_width("Learned", embed_dim, x)
        check_offset("Learned", offset)
        first, last = offset, offset + x.shape[-2]
        needed = Text("{first} to {last}", first=first, last=last - 1)
        if first < 0:
            raise BadValue(
                "Learned: expected positions from 0 on, got {needed}; use an offset of at least 0, "
                "and in a layer no more queries than keys",
                needed=needed,
            )
        if last > positions:
            raise BadValue(
                "Learned: expected positions up to {most}, got {needed}; use a longer table: "
                "Learned({last}, {embed_dim})",
                needed=needed,
                most=positions - 1,
                last=last,
                embed_dim=embed_dim,
            )
        return x + self.table[first:last].to(x.dtype)

    def expected_sizes(self) -> dict[str, int]:
        return {"E": self.table.shape[1]}

    def extra_repr(self) -> str:
        return f"{self.table.shape[0]}, {self.table.shape[1]}"
