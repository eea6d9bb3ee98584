"""The interface of position encodings."""

import sys
from abc import ABC
from dataclasses import dataclass
from enum import Enum

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.positions.relative_terms import RelativeTerms, differences
from headwise.shapes import LARGEST, AttentionShape, check_integer, format_value

Inputs = Float[Tensor, "*b l e"]
PositionIds = Int[Tensor, "_"]
"""Where queries or keys stand: integers, one for each."""


class Stage(Enum):
    """Where in the computation a position acts."""

    INPUT = "input"  # added before the projections: `embed`
    CONTENT = "content"  # changes q and k before their product: `content`
    SCORES = "scores"  # added to the scaled scores: `bias`
    VALUES = "values"  # added to the output: `values`


@dataclass(frozen=True, eq=False)
class ClippedKeyValues:
    """Keys and values that stand for k and v, with the position's bias, from a distance on.

    Attributes:
        reach: that distance, at least 0.
        keys: (B, G, Lk, D) for keys that far behind a query, and for keys that far ahead.
        values: (B, G, Lk, Dv), likewise.
    """

    reach: int
    keys: tuple[Tensor, Tensor]
    values: tuple[Tensor, Tensor]


class Position(nn.Module, ABC):
    """A position encoding. It acts in one or more stages and leaves the others alone.

    Query number i stands at position i + (Lk - Lq), or i + offset, the same position that masks
    see; key number j stands at j. Each stage computes in the dtype of what it is given, from its
    own parameters, and never holds anything of size (Lq, Lk, D).
    """

    stages: frozenset[Stage] = frozenset()

    def embed(self, x: Inputs, offset: int = 0) -> Inputs:
        """X with its positions ``offset, offset + 1, ...`` added; x itself is left alone.

        `MultiheadAttention(..., position=p)` gives what it gives without a position when the
        caller adds ``p`` to query, key and value first.
        """
        del offset
        return x

    def content(self, q: Tensor, k: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor]:
        """The q (B, H, Lq, D) and k (B, G, Lk, D) whose product is the score of the content."""
        del shape
        return q, k

    def bias(self, q: Tensor, query: PositionIds, key: PositionIds, scale: float) -> Tensor | None:
        """What is added to the scaled scores of some queries and some keys.

        Args:
            q: the queries as given to `attend`, (B, H, n, D).
            query: where they stand, (n,).
            key: where the keys stand, (m,).
            scale: the factor on the scores.

        Returns:
            (B or 1, H or 1, n, m), or None for nothing.
        """
        del q, query, key, scale
        return None

    def bias_grid(
        self, q: Tensor, query: PositionIds, key: PositionIds, scale: float
    ) -> Tensor | None:
        """`bias` where queries and keys stand in a row, each a step after the last.

        Args:
            q: as for `bias`; all samples stand alike.
            query: where they stand, (n,), n at least 1.
            key: where the keys stand, (m,), m at least 1, with the same step.
            scale: the factor on the scores.
        """
        found = self.relative(differences(query, key), q, scale)
        return self.bias(q, query, key, scale) if found is None else found.bias(q, scale)

    def relative(self, difference: PositionIds, like: Tensor, scale: float) -> RelativeTerms | None:
        """The same where it looks at the query and the difference only: made once for all pairs.

        Args:
            difference: every key - query that occurs, (T,).
            like: the queries as given to `attend`, for the device and the dtype.
            scale: the factor on the scores.

        Returns:
            What gives the `bias` at those differences, or None if it hangs on more than them.
        """
        del difference, like, scale
        return None

    def clipped(self, k: Tensor, v: Tensor) -> ClippedKeyValues | None:
        """Keys and values that need no bias where a pair is far apart, or None.

        Args:
            k: the keys as they meet in the scores, (B, G, Lk, D).
            v: the values, (B, G, Lk, Dv).
        """
        del k, v
        return None

    def values(self, weights: Tensor, query: PositionIds, key: PositionIds) -> Tensor | None:
        """What is added to the output for weights (B, H, n, m): (B, H, n, Dv), or None."""
        del weights, query, key
        return None

    def expected_sizes(self) -> dict[str, int]:
        """The sizes it was made for, out of H, D and Dv, and E of one that is added to the input.

        `attend` and `MultiheadAttention` refuse others.
        """
        return {}

    def forward(self, x: Inputs, offset: int = 0) -> Inputs:
        """The same as `embed`."""
        return self.embed(x, offset)


def check_size(name: str, what: str, value: object, least: int = 1) -> None:
    """Refuse a size that is no integer from the least to `LARGEST`.

    Raises:
        BadType: if it is no integer.
        BadValue: if it is too small or too large.
    """
    check_integer(name, what, value, least)


def check_base(name: str, base: object) -> float:
    """The longest wavelength over 2 pi, as a float.

    Raises:
        BadType: if it is no number.
        BadValue: if it is not above 1, or not finite.
    """
    if isinstance(base, bool) or not isinstance(base, int | float):
        raise BadType(
            "{name}: base must be a number above 1, got {base!r}; 10000 is usual",
            name=name,
            base=base,
        )
    if not 1 < base <= sys.float_info.max:
        raise BadValue(
            "{name}: base must be above 1, got {base}, and finite; 10000 is usual",
            name=name,
            base=format_value(base),
        )
    return float(base)


def check_offset(name: str, offset: object) -> None:
    """Refuse an offset that is no integer from -`LARGEST` to `LARGEST`.

    Raises:
        BadType: if it is no integer.
        BadValue: if it is too far from 0.
    """
    if torch.compiler.is_compiling() or isinstance(offset, torch.SymInt):
        return
    check_integer(name, "offset", offset, -LARGEST)


def check_width(name: str, embed_dim: int, x: Tensor) -> None:
    """Refuse an input whose last axis is not the one the position was made for.

    Raises:
        BadValue: if the last axis of x is not embed_dim.
    """
    if x.shape[-1] != embed_dim:
        raise BadValue(
            "{name}: made for embed_dim {embed_dim}, got an input of size {x_shape}; "
            "query, key and value must have the same size to share one position",
            name=name,
            embed_dim=embed_dim,
            x_shape=x.shape[-1],
        )


class NoPosition(Position):
    """Adds nothing: a permutation of the tokens permutes the output.

    Example:
        >>> import torch
        >>> NoPosition().embed(torch.ones(1, 2, 3)).sum().item()
        6.0
    """
