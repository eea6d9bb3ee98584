"""The engine as a function of tensors with its own backward, and derivatives of that."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from headwise.engines.autograd_transforms import AttentionFunction, Tensors
from headwise.engines.dropout import Keep
from headwise.engines.kernel import BackwardInputs
from headwise.engines.tiled.backward import backward
from headwise.engines.tiled.forward import dense, forward
from headwise.engines.tiled.problem import Problem
from headwise.masks import Mask
from headwise.positions import Position
from headwise.positions.position import ClippedKeyValues
from headwise.positions.relative_terms import RelativeTerms
from headwise.shapes import AttentionShape

COUNT = 12
"""How many tensors `TiledAttention.problem` takes; those after them are captured."""


@dataclass(frozen=True, eq=False)
class TiledAttention(AttentionFunction):
    """The parameters of a `Problem` that are no tensors, as a function of its tensors.

    Attributes:
        mask, position, scale, shape, keep: as in `Problem`.
        reach: the distance from which clipped keys and values replace k and v; None without them.
    """

    mask: Mask
    position: Position
    scale: float
    shape: AttentionShape
    keep: Keep | None = None
    reach: int | None = None

    def problem(self, tensors: Tensors) -> Problem:
        """The problem of q, k, v, the sinks, the raw queries and the others, in this order.

        The others are the three `RelativeTerms`, the clipped keys behind and ahead, and the clipped
        values behind and ahead. All but q, k, v and the raw queries may be None.
        """
        q, k, v, sinks, raw_queries, *others = tensors[:COUNT]
        relative, far = RelativeTerms(*others[:3]), None
        if self.reach is not None:
            far = ClippedKeyValues(self.reach, (others[3], others[4]), (others[5], others[6]))
        fixed = self.mask, self.position, self.scale, self.shape
        terms = relative if any(term is not None for term in relative) else None
        return Problem(q, k, v, raw_queries, *fixed, terms, far, sinks, self.keep)

    def forward(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        return forward(self.problem(tensors))

    def plain(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        return dense(self.problem(tensors))

    def backward(self, tensors: Tensors, given: BackwardInputs, needed: Sequence[bool]) -> Tensors:
        captured = list(zip(tensors, needed, strict=True))[COUNT:]
        learned = [tensor for tensor, need in captured if need]
        buffers = backward(self.problem(tensors), given, learned)
        of_problem, rest = buffers.all[: COUNT - 1], iter(buffers.learned)
        return (*of_problem, *(next(rest) if need else None for _, need in captured))
