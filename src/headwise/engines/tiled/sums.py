"""The gradients of everything that an attention is made of, while they are added up."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines.tiled.far import BEHIND, NEAR
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.work import Work
from headwise.positions import Stage
from headwise.positions.relative import Relative


@dataclass(frozen=True, eq=False)
class Sums:
    """The gradients, being added up in the softmax dtype.

    Attributes:
        q, k, v: of the tensors of the attention.
        asked: of the queries as asked, which nothing but a position's bias looks at; or None.
        relative: of the position's `Relative`.
        far: of the keys behind, the keys ahead, the values behind, the values ahead; or none.
        learned: of what else the bias, or what is added to the values, depends on.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    asked: Tensor | None
    relative: Relative
    far: tuple[Tensor, ...]
    learned: tuple[Tensor, ...]

    @classmethod
    def of(cls, work: Work, learned: Sequence[Tensor], *, written: bool) -> "Sums":
        """All 0; but for q's where each is ``written`` before it is added to."""
        wide = softmax_dtype(work.q.dtype)

        def zeros(tensor: Tensor) -> Tensor:
            return torch.zeros_like(tensor, dtype=wide)

        far = () if work.far is None else (*work.far.keys, *work.far.values)
        given = Relative() if work.relative is None else work.relative
        return cls(
            torch.empty_like(work.q, dtype=wide) if written else zeros(work.q),
            zeros(work.k),
            zeros(work.v),
            zeros(work.asked) if Stage.SCORES in work.position.stages else None,
            Relative(*(None if each is None else zeros(each) for each in given)),
            tuple(map(zeros, far)),
            tuple(map(zeros, learned)),
        )

    def rows(self, part: Part) -> tuple[Tensor, Tensor]:
        """Those of the keys and the values that a part reads."""
        if not self.far or part.place == NEAR:
            return self.k, self.v
        number = 0 if part.place == BEHIND else 1
        return self.far[number], self.far[2 + number]
