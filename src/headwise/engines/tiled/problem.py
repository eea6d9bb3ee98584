"""One attention as the tiled engine computes it, and the gradients of its tensors.

Where a position's bias is constant from some distance on, other keys and values can stand for k and
v there ("clipped"). The pairs of a mask then fall into three regions: at least that far behind a
query, as far ahead of it, and near. All queries of a block have the same keys in a region, so that
clipped pairs form rectangles.
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

BLOCK = 256  # queries that have the same keys in a region
GRAIN = 64  # a region begins and ends at multiples of so many keys

NEAR, BEHIND, AHEAD = 0, -1, 1

WORTH = 0.5  # the largest share of keys in the near region for which clipping is worthwhile
PAIRS = 1 << 22  # pairs whose rule is written out at once

Numbers = TypeVar("Numbers", int, Tensor)


@dataclass(frozen=True, eq=False)
class Problem:
    """The tensors and parameters of one attention.

    Attributes:
        q, k, v: (B, H, Lq, D), (B, G, Lk, D), (B, G, Lk, Dv); last strides 1.
        raw_queries: the queries before rotation, which a position's bias depends on; like q.
        mask, position, scale, shape: as in `Call`; the position has rotated q and k already.
        relative: the position's terms for every difference of a key and a query, from the least, or
            None.
        far: clipped keys and values for pairs far apart, or None.
        sinks: one more logit a head in every softmax, (H,); or None.
        keep: the pairs that dropout keeps, or None without dropout; of a call that is plain.
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
        """q, k, v, the raw queries, 3 relative terms, 4 clipped keys and values; None if absent."""
        far = (None,) * 4 if self.far is None else (*self.far.keys, *self.far.values)
        relative = self.relative or RelativeTerms()
        return (self.q, self.k, self.v, self.raw_queries, *relative, *far)

    def parts(self, side: int) -> list[Part]:
        """The parts, region by region, with blocks of ``side`` queries where nothing is clipped."""
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
        """The full keys and values that a part reads."""
        if self.far is None or part.region == NEAR:
            return self.k, self.v
        number = 0 if part.region == BEHIND else 1
        return self.far.keys[number], self.far.values[number]

    def position_biases(self, part: Part) -> bool:
        """Whether the position adds to the scores of a part."""
        return part.region == NEAR and Stage.SCORES in self.position.stages

    def needs_weights(self, part: Part) -> bool:
        """Whether the weights of a part are needed, which the fused kernel does not return."""
        return part.region == NEAR and Stage.VALUES in self.position.stages

    def differences(self, part: Part) -> slice | None:
        """The slice of all differences that a part has; None where its blocks differ in them."""
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
        """The relative terms at the differences of a part, as views; None where they differ."""
        where = self.differences(part)
        return None if where is None or self.relative is None else self.relative.at(where)

    def zero_masked(self) -> "Problem":
        """With 0 in the keys and values that no query of the group sees, if any is NaN or inf.

        A finite number there has a weight of exactly 0 and needs no change.
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
    """Whether every number is finite; False is possible where the sum overflows."""
    return bool(rows.detach().sum(dtype=softmax_dtype(rows.dtype)).isfinite())


@dataclass(frozen=True, repr=False)
class Region(Mask):
    """The pairs in one region.

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
        """The first key that is near a query, and the first that is ahead."""
        block = query // BLOCK * BLOCK
        first = (block - self.reach + 1) // GRAIN * GRAIN
        return first, -((1 - BLOCK - self.reach - block) // GRAIN) * GRAIN

    @property
    def name(self) -> str:
        return f"place({self.which}, {self.reach})"


def relative_terms(
    position: Position, raw_queries: Tensor, shape: AttentionShape, scale: float
) -> RelativeTerms | None:
    """The position's terms for every difference of a key and a query, if its bias has that form."""
    if Stage.SCORES not in position.stages:
        return None
    _, _, query, key = shape.indices()
    with torch.autocast(raw_queries.device.type, enabled=False):
        return position.relative(differences(query.flatten(), key.flatten()), raw_queries, scale)


def clipped_terms(
    position: Position, mask: Mask, shape: AttentionShape, k: Tensor, v: Tensor
) -> ClippedKeyValues | None:
    """The clipped k (B, G, Lk, D), rotated, and v (B, G, Lk, Dv), if most pairs are far apart.

    They are if the mask is no band, and the sequence is long.
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
        raw_queries: None where no bias depends on them.
        far: of the keys behind, the keys ahead, the values behind, the values ahead; or empty.
        learned: of other tensors that the bias, or what is added to the values, depends on.
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
        """Zeros; uninitialised for q if every row is ``written`` before it is added to."""
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
        """The gradients of `Problem.tensors` in their order, then the learned."""
        far = self.far or (None,) * 4
        return (self.q, self.k, self.v, self.raw_queries, *self.relative, *far, *self.learned)

    def rows(self, part: Part) -> tuple[Tensor, Tensor]:
        """The buffers of the keys and values that a part reads."""
        if not self.far or part.region == NEAR:
            return self.k, self.v
        number = 0 if part.region == BEHIND else 1
        return self.far[number], self.far[2 + number]
