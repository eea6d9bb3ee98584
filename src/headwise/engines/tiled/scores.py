"""The terms added to the scaled scores of a part: the bias, and -inf where not allowed."""

from collections.abc import Iterator
from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines import kernel
from headwise.engines.kernel import Modify
from headwise.engines.tiled.batched_kernel import folded, unfolded
from headwise.engines.tiled.parts import IndexedRows, Part
from headwise.engines.tiled.problem import Problem
from headwise.positions.relative_terms import RelativeTerms


class ScoreTerms(NamedTuple):
    """The terms added to the scores of a part, and its fully masked rows.

    Attributes:
        scores: (B or 1, H or 1, n or 1, r, m) in the softmax dtype; None if nothing is added.
        fully_masked: (B or 1, H or 1, n or 1, r), True for a row without an allowed key; or None.
    """

    scores: Tensor | None
    fully_masked: Tensor | None


def chunks_with_terms(
    problem: Problem, part: Part, limit: int
) -> Iterator[tuple[Part, ScoreTerms]]:
    """Yield the chunks of a part with their score terms, computed once if all are equal."""
    once = None
    biased = problem.mask.biased or problem.position_biases(part)
    same = part.mask is None and not biased and not isinstance(part.keys, IndexedRows)
    if same and part.queries.size * part.keys.size <= limit:
        once = score_terms(problem, part.blocks(0, 1), part.queries.take(problem.raw_queries))
    for chunk in part.chunks(limit):
        yield chunk, once or score_terms(problem, chunk, chunk.queries.take(problem.raw_queries))


def score_terms(
    problem: Problem, part: Part, raw_queries: Tensor, given: RelativeTerms | None = None
) -> ScoreTerms:
    """Return the terms of a part, differentiable with respect to the tensors of the bias.

    ``raw_queries`` are the unrotated queries of the part, (B, H, n, r, D). ``given`` replaces the
    relative terms of the problem.
    """
    given = problem.terms(part) if given is None else given
    pairs, extra = allowed(problem, part), bias(problem, part, raw_queries, given)
    if pairs is None:
        return ScoreTerms(extra, None)
    wide = softmax_dtype(problem.q.dtype)
    scores = kernel.masked_bias(pairs, extra, wide)
    return ScoreTerms(scores, ~pairs.any(-1))


def allowed(problem: Problem, part: Part) -> Tensor | None:
    """Return which pairs of a part are allowed, (B or 1, H or 1, n or 1, r, m), or None for all."""
    rows, keys = part.queries.size, part.keys.size
    rules = list[Tensor]()
    if part.band is not None:
        rules.append(part.band.dense(rows, keys)[None, None, None])
    if isinstance(part.keys, IndexedRows) and bool((part.keys.index < 0).any()):
        rules.append((part.keys.index >= 0)[None, None, :, None])
    if part.mask is not None:
        rules.append(_whole(part.mask.rule(*_indices(problem, part)), part))
    return reduce(and_, rules).expand(-1, -1, -1, rows, keys) if rules else None


def bias(
    problem: Problem, part: Part, raw_queries: Tensor, given: RelativeTerms | None
) -> Tensor | None:
    """Return the bias of a part from the mask and the position, or None."""
    of_position = None
    if problem.position_biases(part):
        of_position = _position_bias(problem, part, raw_queries, given)
    of_mask = problem.mask.bias(*_indices(problem, part)) if problem.mask.biased else None
    if of_mask is None:
        return of_position
    of_mask = _whole(of_mask, part).to(softmax_dtype(problem.q.dtype))
    return of_mask if of_position is None else of_mask + of_position


def _position_bias(
    problem: Problem, part: Part, raw_queries: Tensor, given: RelativeTerms | None
) -> Tensor | None:
    """Return the position's bias, (B or 1, H or 1, n or 1, r, m)."""
    wide, samples, scale = softmax_dtype(raw_queries.dtype), raw_queries.shape[0], problem.scale
    if given is not None:
        return unfolded(given.bias(folded(raw_queries), scale).to(wide), samples)
    queries, keys = places(problem, part)
    if part.even and problem.relative is not None:  # blocks with equal differences share a call
        shared = problem.position.bias(folded(raw_queries), queries[0], keys[0], scale)
        return None if shared is None else unfolded(shared.to(wide), samples)
    blocks = zip(raw_queries.unbind(2), queries, keys, strict=True)
    biases = [problem.position.bias(*block, scale) for block in blocks]
    present = [block.to(wide) for block in biases if block is not None]
    return torch.stack(present, 2) if present else None


def values(problem: Problem, part: Part, weights: Tensor) -> Tensor:
    """Return the position's term of the output for the weights (B, H, n, r, m) of a part."""
    blocks = zip(weights.unbind(2), *places(problem, part), strict=True)
    added = [problem.position.values(*block) for block in blocks]
    return torch.stack([block for block in added if block is not None], 2)


def score_function(problem: Problem, part: Part) -> Modify:
    """Return the problem's function of the scaled scores of a part, (B n, H, r, m)."""
    function = problem.score_function
    if function is None:
        return None
    indices, samples = _indices(problem, part), problem.shape.batch
    return lambda scores: folded(function(unfolded(scores, samples), *indices))


def places(problem: Problem, part: Part) -> tuple[Tensor, Tensor]:
    """Return the positions of the queries (n, r) and keys (n, m) of a part; 0 for a missing key."""
    device = problem.shape.device
    queries = part.queries.numbers(device) + problem.shape.offset
    return queries, part.keys.numbers(device).clamp(min=0)


def _indices(problem: Problem, part: Part) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return b (B,1,1,1,1), h (1,H,1,1,1), query positions (1,1,n,r,1), keys (1,1,n,1,m)."""
    queries, keys = places(problem, part)
    b = torch.arange(problem.shape.batch, device=queries.device)[:, None, None, None, None]
    h = torch.arange(problem.shape.heads, device=queries.device)[None, :, None, None, None]
    return b, h, queries[None, None, :, :, None], keys[None, None, :, None]


def _whole(values: Tensor, part: Part) -> Tensor:
    """Expand values to five axes, with the last three axes at the size of the part."""
    values = values.view(*(1,) * (5 - values.dim()), *values.shape)
    return values.expand(-1, -1, part.queries.count, part.queries.size, part.keys.size)
