"""One attention as the tiled engine computes it, and the gradients of its tensors.

If a position's bias is constant beyond some distance, clipped keys and values, which include it,
can replace k and v there. The pairs of a mask then fall into three regions: at least that far
behind the query, at least that far ahead of it, and near it. All queries of a block have the same
keys in a region, so the pairs of a clipped region form rectangles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeVar

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines.dropout import Keep
from headwise.engines.eager import zero_masked_kv
from headwise.engines.tiled.decompose import conjuncts, disjuncts, mostly_dense, next_layer, parts
from headwise.engines.tiled.parts import Part, StridedRows
from headwise.masks import Mask, Tile
from headwise.masks.mask import And
from headwise.positions import Position, Stage
from headwise.positions.position import ClippedKeyValues
from headwise.positions.relative_terms import RelativeTerms, differences
from headwise.score_functions import ScoreFunction
from headwise.shapes import AttentionShape, Index, Truth

BLOCK = 256  # number of consecutive queries that have the same keys in a region
GRAIN = 64  # a region begins and ends at multiples of this many keys

NEAR, BEHIND, AHEAD = 0, -1, 1

WORTH = 0.5  # the largest share of keys in the near region for which clipping is worthwhile
PAIRS = 1 << 22  # the most pairs whose rule is evaluated at once

Numbers = TypeVar("Numbers", int, Tensor)


@dataclass(frozen=True, eq=False)
class Problem:
    """The tensors and parameters of one attention.

    Attributes:
        q, k, v: (B, H, Lq, D), (B, G, Lk, D), (B, G, Lk, Dv), with last strides 1.
        raw_queries: the queries before rotation, on which a position's bias depends; like q.
        mask, position, scale, shape: as in `Call`; the position has rotated q and k already.
        relative: the position's terms for every difference key - query in increasing order, or
            None.
        far: clipped keys and values for distant pairs, or None.
        sinks: one extra logit per head in every softmax, (H,), or None.
        keep: the pairs that dropout keeps, or None without dropout; see `_is_plain`.
        score_function: the function of the scaled scores, or None; with one, nothing is clipped.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    raw_queries: Tensor
    mask: Mask
    position: Position
    scale: float
    shape: AttentionShape
    relative: RelativeTerms | None = None
    far: ClippedKeyValues | None = None
    sinks: Tensor | None = None
    keep: Keep | None = None
    score_function: ScoreFunction | None = None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """q, k, v, the unrotated queries, 3 relative terms, 4 clipped tensors; None if absent."""
        far = (None,) * 4 if self.far is None else (*self.far.keys, *self.far.values)
        relative = self.relative or RelativeTerms()
        return (self.q, self.k, self.v, self.raw_queries, *relative, *far)

    def parts(self, side: int) -> list[Part]:
        """Return the parts by region, with blocks of ``side`` queries if nothing is clipped."""
        if self.far is None:
            return parts(self.mask, self.shape, side)
        plan, layer = list[Part](), 0
        for which in (NEAR, BEHIND, AHEAD):
            inside = And(self.mask, Region(which, self.far.reach))
            for part in parts(inside, self.shape, GRAIN):
                plan.append(replace(part, region=which, layer=part.layer + layer))
            layer = next_layer(plan)
        return plan

    def keys_values(self, part: Part) -> tuple[Tensor, Tensor]:
        """Return the whole keys and values that a part reads."""
        if self.far is None or part.region == NEAR:
            return self.k, self.v
        number = 0 if part.region == BEHIND else 1
        return self.far.keys[number], self.far.values[number]

    def position_biases(self, part: Part) -> bool:
        """Return whether the position adds to the scores of a part."""
        return part.region == NEAR and Stage.SCORES in self.position.stages

    def needs_weights(self, part: Part) -> bool:
        """Return whether a part needs its weights, which the fused kernel does not return."""
        return part.region == NEAR and Stage.VALUES in self.position.stages

    def differences(self, part: Part) -> slice | None:
        """Return the slice of `relative` for a part; None if its blocks need different slices."""
        queries, keys = part.queries, part.keys
        if self.relative is None or not (self.position_biases(part) and part.even):
            return None
        if not isinstance(queries, StridedRows) or not isinstance(keys, StridedRows):
            return None
        if queries.step != keys.step:
            return None
        least = 1 - self.shape.offset - self.shape.queries  # the first of `relative`
        last = queries.start + (queries.size - 1) * queries.step + self.shape.offset
        first = keys.start - last - least
        return slice(first, first + (queries.size + keys.size - 2) * keys.step + 1, keys.step)

    def terms(self, part: Part) -> RelativeTerms | None:
        """Return the relative terms of a part, as views; None if `differences` is None."""
        where = self.differences(part)
        return None if where is None or self.relative is None else self.relative.at(where)

    def zero_masked(self) -> "Problem":
        """Set keys and values that no query attends to to 0, if any number is NaN or inf.

        A finite number there has a weight of exactly 0, so it need not change.
        """
        if finite(self.k) and finite(self.v):
            return self
        b, h, q, k = self.shape.indices()
        seen = torch.zeros((1, 1, 1), dtype=torch.bool, device=self.shape.device)
        for rows in torch.split(q, max(1, PAIRS // self.shape.keys), 2):
            pairs = self.mask.rule(b, h, rows, k)
            seen = seen | pairs.view(*(1,) * (4 - pairs.dim()), *pairs.shape).any(2)
        seen, far = seen.expand(-1, -1, self.shape.keys), self.far
        k, v = zero_masked_kv(seen, self.k, self.v)
        if far is not None:
            behind, ahead, *values = zero_masked_kv(seen, *far.keys, *far.values)
            far = replace(far, keys=(behind, ahead), values=(values[0], values[1]))
        return replace(self, k=k, v=v, far=far)


def finite(rows: Tensor) -> bool:
    """Return whether every number is finite; may return False if the sum overflows."""
    return bool(rows.detach().sum(dtype=softmax_dtype(rows.dtype)).isfinite())


@dataclass(frozen=True, repr=False)
class Region(Mask):
    """The mask of the pairs in one region.

    Attributes:
        which: `NEAR`, `BEHIND` or `AHEAD`.
        reach: the distance from which pairs may be clipped.
    """

    which: int
    reach: int

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        first, last = self._ends(q)
        if self.which == BEHIND:
            return k < first
        return k >= last if self.which == AHEAD else (k >= first) & (k < last)

    def tile(self, q: range, k: range) -> Tile:
        (first, last), (further, furthest) = self._ends(q.start), self._ends(q.stop - 1)
        if self.which == BEHIND:
            full, empty = k.stop <= first, k.start >= further
        elif self.which == AHEAD:
            full, empty = k.start >= furthest, k.stop <= last
        else:
            full = k.start >= further and k.stop <= last
            empty = k.stop <= first or k.start >= furthest
        return Tile.FULL if full else Tile.EMPTY if empty else Tile.MIXED

    def _ends(self, query: Numbers) -> tuple[Numbers, Numbers]:
        """Return the first key that is near a query, and the first key that is ahead of it."""
        block = query // BLOCK * BLOCK
        first = (block - self.reach + 1) // GRAIN * GRAIN
        return first, -((1 - BLOCK - self.reach - block) // GRAIN) * GRAIN

    @property
    def name(self) -> str:
        return f"place({self.which}, {self.reach})"


def relative_terms(
    position: Position, raw_queries: Tensor, shape: AttentionShape, scale: float
) -> RelativeTerms | None:
    """Return the position's terms for every difference key - query, or None if it has none."""
    if Stage.SCORES not in position.stages:
        return None
    _, _, query, key = shape.indices()
    with torch.autocast(raw_queries.device.type, enabled=False):
        return position.relative(differences(query.flatten(), key.flatten()), raw_queries, scale)


def clipped_terms(
    position: Position, mask: Mask, shape: AttentionShape, k: Tensor, v: Tensor
) -> ClippedKeyValues | None:
    """Return the clipped k (B, G, Lk, D), rotated, and v (B, G, Lk, Dv), if worthwhile.

    They are if the sequence is long and the mask is not a band, so that most pairs are distant.
    """
    with torch.autocast(k.device.type, enabled=False):
        far = position.clipped(k, v)
    if far is None or BLOCK + 2 * (far.reach + GRAIN) > WORTH * shape.keys:
        return None
    near = [term for term in conjuncts(mask) if term.by_distance]
    band = near and not mostly_dense(reduce(And, near), shape)
    return None if band or len(disjuncts(mask)) > 1 else far


@dataclass(frozen=True, eq=False)
class GradientBuffers:
    """The gradients of the tensors of an attention, accumulated in the softmax dtype.

    Attributes:
        q, k, v, relative: as in `Problem`.
        raw_queries: None if no bias depends on the unrotated queries.
        far: of the clipped keys behind and ahead, and values behind and ahead; or empty.
        learned: gradients of other tensors that the bias or the added output depends on.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    raw_queries: Tensor | None
    relative: RelativeTerms
    far: tuple[Tensor, ...]
    learned: tuple[Tensor, ...]

    @classmethod
    def of(cls, problem: Problem, learned: Sequence[Tensor], *, written: bool) -> "GradientBuffers":
        """Return zeros; q is uninitialised if every row is ``written`` before it is added to."""
        wide = softmax_dtype(problem.q.dtype)

        def zeros(tensor: Tensor) -> Tensor:
            return torch.zeros_like(tensor, dtype=wide)

        q = torch.empty_like(problem.q, dtype=wide) if written else zeros(problem.q)
        raw = zeros(problem.raw_queries) if Stage.SCORES in problem.position.stages else None
        terms = problem.relative or RelativeTerms()
        relative = RelativeTerms(*(None if term is None else zeros(term) for term in terms))
        far = () if problem.far is None else (*problem.far.keys, *problem.far.values)
        others = tuple(map(zeros, far)), tuple(map(zeros, learned))
        return cls(q, zeros(problem.k), zeros(problem.v), raw, relative, *others)

    @property
    def all(self) -> tuple[Tensor | None, ...]:
        """The gradients of `Problem.tensors` in that order, then of the learned tensors."""
        far = self.far or (None,) * 4
        return (self.q, self.k, self.v, self.raw_queries, *self.relative, *far, *self.learned)

    def rows(self, part: Part) -> tuple[Tensor, Tensor]:
        """Return the gradient buffers of the keys and values that a part reads."""
        if not self.far or part.region == NEAR:
            return self.k, self.v
        number = 0 if part.region == BEHIND else 1
        return self.far[number], self.far[2 + number]
