"""The interface of position encodings, and the combination of two."""

import sys
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.positions.relative_terms import RelativeTerms, differences
from headwise.shapes import LARGEST, AttentionShape, check_integer, format_value

Inputs = Float[Tensor, "*b l e"]
PositionIds = Int[Tensor, "_"]  # integer positions, one for each query or key


class Stage(Enum):
    """The stage of the computation in which a position acts."""

    INPUT = "input"  # added to the input before the projections: `embed`
    CONTENT = "content"  # applied to q and k before their product: `content`
    SCORES = "scores"  # added to the scaled scores: `bias`
    VALUES = "values"  # added to the output: `values`


@dataclass(frozen=True, eq=False)
class ClippedKeyValues:
    """Keys and values that replace k and v, with the position's bias, from a distance on."""

    reach: int  # the distance, at least 0
    keys: tuple[Tensor, Tensor]  # (B, G, Lk, D), for keys at least that far behind and ahead
    values: tuple[Tensor, Tensor]  # (B, G, Lk, Dv), in the same order


class Position(nn.Module, ABC):
    """A position encoding, which acts in one or more stages and leaves the others unchanged.

    Query number i has position i + (Lk - Lq), or i + offset, as for masks; key number j has
    position j. Each stage computes in the dtype of its input, from its own parameters, and never
    creates a tensor of size (Lq, Lk, D).
    """

    stages: frozenset[Stage] = frozenset()
    by_distance = False  # whether the bias depends only on the head and the difference

    @property
    def by_difference(self) -> bool:
        """Whether `relative` gives the bias: it depends on the query and the difference only."""
        return type(self).relative is not Position.relative

    @property
    def acts_after_content(self) -> bool:
        """Whether the position adds to the scores or to the output."""
        return bool({Stage.SCORES, Stage.VALUES} & self.stages)

    @property
    def after_content(self) -> "Position":
        """What acts once q and k have passed through `content`: on the scores or the output."""
        return self

    def __add__(self, other: "Position") -> "Position":
        """Both positions together, see `Combined`."""
        return Combined(self, other)

    def embed(self, x: Inputs, offset: int = 0) -> Inputs:
        """Return the sum of x and the encodings of its positions ``offset, offset + 1, ...``."""
        return x

    def content(self, q: Tensor, k: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor]:
        """Return the q (B, H, Lq, D) and k (B, G, Lk, D) whose product gives the scores."""
        return q, k

    def bias(self, q: Tensor, query: PositionIds, key: PositionIds, scale: float) -> Tensor | None:
        """Return the bias on the scaled scores, (B or 1, H or 1, n, m), or None.

        Args:
            q: the queries passed to `attend`, (B, H, n, D).
            query: the positions of the queries, (n,).
            key: the positions of the keys, (m,).
            scale: the factor on the scores.
        """
        return None

    def bias_grid(
        self, q: Tensor, query: PositionIds, key: PositionIds, scale: float
    ) -> Tensor | None:
        """Return `bias` for ``query`` and ``key`` that grow by the same step and are not empty."""
        terms = self.relative(differences(query, key), q, scale)
        return self.bias(q, query, key, scale) if terms is None else terms.bias(q, scale)

    def relative(self, difference: PositionIds, like: Tensor, scale: float) -> RelativeTerms | None:
        """Return the terms of a `bias` that depends only on the query and the difference, or None.

        ``difference`` holds every key - query that occurs, (T,); ``like`` has the device and dtype.
        """
        return None

    def clipped(self, k: Tensor, v: Tensor) -> ClippedKeyValues | None:
        """Return k (B, G, Lk, D) and v (B, G, Lk, Dv) with the bias of distant pairs, or None."""
        return None

    def values(self, weights: Tensor, query: PositionIds, key: PositionIds) -> Tensor | None:
        """Return the term of the output (B, H, n, Dv) for weights (B, H, n, m), or None."""
        return None

    def expected_sizes(self) -> dict[str, int]:
        """Return the required sizes by letter: H, D and Dv, or E if it is added to the input."""
        return {}

    def forward(self, x: Inputs, offset: int = 0) -> Inputs:
        return self.embed(x, offset)


def check_base(name: str, base: object) -> float:
    """Validate the longest wavelength divided by 2 pi, and return it as a float."""
    if isinstance(base, bool) or not isinstance(base, int | float):
        raise BadType(
            "{name}: base must be a number above 1, got {base!r}; 10000 is usual",
            name=name,
            base=base,
        )
    if not 1 < base <= sys.float_info.max:
        raise BadValue(
            "{name}: base must be above 1 and finite, got {base}; 10000 is usual",
            name=name,
            base=format_value(base),
        )
    return float(base)


def check_offset(name: str, offset: object) -> None:
    """Check that an offset is an integer from -`LARGEST` to `LARGEST`, except while compiling."""
    if not torch.compiler.is_compiling() and not isinstance(offset, torch.SymInt):
        check_integer(name, "offset", offset, -LARGEST)


def check_width(name: str, embed_dim: int, x: Tensor) -> None:
    """Check that the last axis of an input has size ``embed_dim``."""
    if x.shape[-1] != embed_dim:
        raise BadValue(
            "{name}: expected an input of size embed_dim {embed_dim}, got {x_shape}; "
            "query, key and value must have the same size to share one position",
            name=name,
            embed_dim=embed_dim,
            x_shape=x.shape[-1],
        )


class NoPosition(Position):
    """No position encoding: a permutation of the tokens permutes the output.

    Example:
        >>> import torch
        >>> NoPosition().embed(torch.ones(1, 2, 3)).sum().item()
        6.0
    """


class Combined(Position):
    """Two positions in one attention, created by ``first + second``.

    q and k pass through the first position, then the second; the biases on the scores are added, as
    are the terms of the output.

    Args:
        first: a position that acts inside attention.
        second: another position that acts inside attention.

    Raises:
        BadType, BadValue: if an argument is not a position, or is added before the projections, or
            if the two have different sizes.

    Example:
        >>> from headwise.positions import ALiBi, Rotary
        >>> combined = Rotary(4, pairs="halves") + ALiBi(2)
        >>> q = torch.ones(1, 2, 3, 4)
        >>> combined.bias(q, torch.arange(3), torch.arange(3), 0.5).shape
        torch.Size([1, 2, 3, 3])
    """

    def __init__(self, first: Position, second: Position) -> None:
        super().__init__()
        for name, position in (("first", first), ("second", second)):
            _check_part(name, position)
        sizes = first.expected_sizes()
        for letter, size in second.expected_sizes().items():
            if sizes.setdefault(letter, size) != size:
                raise BadValue(
                    "Combined: the first position has {letter}={size}, the second has "
                    "{letter}={other}; create both with the same size",
                    letter=letter,
                    size=sizes[letter],
                    other=size,
                )
        self.first, self.second = first, second
        self.stages = first.stages | second.stages

    @property
    def by_distance(self) -> bool:  # type: ignore[override]
        return all(position.by_distance for position in self._parts(Stage.SCORES))

    @property
    def by_difference(self) -> bool:
        acting = self._parts(Stage.SCORES) or self._parts(Stage.VALUES)
        return all(position.by_difference for position in acting)

    @property
    def after_content(self) -> Position:
        acting = [part for part in (self.first, self.second) if part.acts_after_content]
        parts = [part.after_content for part in acting]
        return Combined(*parts) if len(parts) == 2 else parts[0] if parts else NoPosition()

    def content(self, q: Tensor, k: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor]:
        q, k = self.first.content(q, k, shape)
        return self.second.content(q, k, shape)

    def bias(self, q: Tensor, query: PositionIds, key: PositionIds, scale: float) -> Tensor | None:
        return self._sum(Stage.SCORES, lambda position: position.bias(q, query, key, scale))

    def relative(self, difference: PositionIds, like: Tensor, scale: float) -> RelativeTerms | None:
        parts = self._parts(Stage.SCORES)
        terms = [position.relative(difference, like, scale) for position in parts]
        if len(terms) == 1:
            return terms[0]
        numbers = [term.numbers for term in terms if term is not None and term.vectors is None]
        present = [number for number in numbers if number is not None]
        if not terms or len(present) < len(terms):
            return None
        return RelativeTerms(numbers=torch.stack(present).sum(0))

    def values(self, weights: Tensor, query: PositionIds, key: PositionIds) -> Tensor | None:
        return self._sum(Stage.VALUES, lambda position: position.values(weights, query, key))

    def expected_sizes(self) -> dict[str, int]:
        return {**self.first.expected_sizes(), **self.second.expected_sizes()}

    def _parts(self, stage: Stage) -> list[Position]:
        return [position for position in (self.first, self.second) if stage in position.stages]

    def _sum(self, stage: Stage, term: Callable[[Position], Tensor | None]) -> Tensor | None:
        terms = [value for value in map(term, self._parts(stage)) if value is not None]
        if len(terms) < 2:
            return terms[0] if terms else None
        return terms[0] + terms[1]


def _check_part(name: str, position: Position) -> None:
    if not isinstance(position, Position):
        raise BadType(
            "Combined: {name} must be a position, got {got}; for example hw.ALiBi(num_heads)",
            name=name,
            got=type(position).__name__,
        )
    if Stage.INPUT in position.stages:
        raise BadValue(
            "Combined: {kind} is added before the projections; add it to the input with "
            "position.embed(x), and give the attention the other position alone",
            kind=type(position).__name__,
        )
