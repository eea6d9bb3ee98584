"""Attention whose cost follows the pattern of the mask instead of Lq Lk.

The mask is decomposed into parts: bands become overlapping views of the keys, which the fused
kernel computes as one batch; other tiles are gathered. Parts that share queries are merged by their
logsumexp. No tensor of size (Lq, Lk) exists, neither in the forward nor in the backward pass.

    eligibility         the calls that the engine can run, and those for which it is worthwhile
    decompose, tiles    split a mask into `parts`
    problem             the tensors of one attention and the buffers of their gradients
    scores              the bias and the mask of a part
    forward, backward   run over all parts with `batched_kernel`
    operator, encoding  run the engine under torch.compile
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.engines import kernel
from headwise.engines.autograd_transforms import AttentionFunction, Tensors, with_frozen_tensors
from headwise.engines.dropout import Keep, draw_call_seed, with_dropout
from headwise.engines.kernel import BackwardInputs
from headwise.engines.statistics import widen_for_sinks
from headwise.engines.tiled import backward, forward
from headwise.engines.tiled.eligibility import head_groups, run_per_head, why_not, worthwhile
from headwise.engines.tiled.encoding import encodable, encode
from headwise.engines.tiled.operator import operator
from headwise.engines.tiled.problem import Problem, clipped_terms, relative_terms
from headwise.masks import Mask
from headwise.positions import Position, Stage
from headwise.positions.position import ClippedKeyValues
from headwise.positions.relative_terms import RelativeTerms
from headwise.score_functions import ScoreFunction
from headwise.shapes import AttentionShape

NAME = "tiled"

COUNT = 12  # number of tensors that `TiledAttention.problem` takes; further tensors are captured


@dataclass(frozen=True, eq=False)
class TiledAttention(AttentionFunction):
    """Tiled attention as a function of tensors; its attributes are the rest of a `Problem`.

    Attributes:
        mask, position, scale, shape, keep, score_function: as in `Problem`.
        reach: the distance from which clipped keys and values replace k and v, or None.
    """

    mask: Mask
    position: Position
    scale: float
    shape: AttentionShape
    keep: Keep | None = None
    score_function: ScoreFunction | None = None
    reach: int | None = None

    def problem(self, tensors: Tensors) -> Problem:
        """Build the problem from q, k, v, the sinks, the unrotated queries and 7 more tensors.

        The seven are the three `RelativeTerms`, the clipped keys behind and ahead, and the clipped
        values behind and ahead. The sinks and the seven may be None.
        """
        q, k, v, sinks, raw_queries, *others = tensors[:COUNT]
        relative, far = RelativeTerms(*others[:3]), None
        if self.reach is not None:
            far = ClippedKeyValues(self.reach, (others[3], others[4]), (others[5], others[6]))
        fixed = self.mask, self.position, self.scale, self.shape
        terms = relative if any(term is not None for term in relative) else None
        extra = sinks, self.keep, self.score_function
        return Problem(q, k, v, raw_queries, *fixed, terms, far, *extra)

    def forward(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        return forward.forward(self.problem(tensors))

    def plain(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        return forward.dense(self.problem(tensors))

    def backward(self, tensors: Tensors, given: BackwardInputs, needed: Sequence[bool]) -> Tensors:
        captured = list(zip(tensors, needed, strict=True))[COUNT:]
        learned = [tensor for tensor, need in captured if need]
        buffers = backward.backward(self.problem(tensors), given, learned)
        of_problem, rest = buffers.all[: COUNT - 1], iter(buffers.learned)
        return (*of_problem, *(next(rest) if need else None for _, need in captured))


def run(call: Call) -> Result:
    """Run attention part by part."""
    if call.dropout and not _is_plain(call):
        return with_dropout(call, run)
    if call.dropout or torch.compiler.is_compiling():
        return _run(call)
    groups = head_groups(call)
    return run_per_head(call, groups, _run) if len(groups) > 1 else _run(call)


def _is_plain(call: Call) -> bool:
    """Return whether `backward` supports this dropout: plain scores, no sinks, only the output."""
    plain = not call.biased and call.score_function is None
    plain = plain and Stage.VALUES not in call.position.stages and call.sinks is None
    return plain and call.dropout < 1 and "logsumexp" not in call.need


def _run(call: Call) -> Result:
    """Run attention for heads that share one mask or cannot be separated."""
    keep = Keep(call.dropout, draw_call_seed()) if call.dropout else None
    compute = _by_operator if torch.compiler.is_compiling() else _by_function
    output, logsumexp = compute(call, keep)
    sums = logsumexp if "logsumexp" in call.need else None
    return Result(output[..., : call.v.shape[3]].to(call.v.dtype), logsumexp=sums)


def _by_function(call: Call, keep: Keep | None) -> tuple[Tensor, Tensor]:
    q, k, v, raw_queries = _packed(call)
    position = with_frozen_tensors(call.position)
    relative = relative_terms(call.position, raw_queries, call.shape, call.scale)
    function, far = call.score_function, None
    if function is None:  # one changes the scores, and not the position's bias
        far = clipped_terms(call.position, call.mask, call.shape, k, v)
    clipped = () if far is None else (*far.keys, *far.values)
    q, k, v, *clipped_rows = _even(call, q, k, v, *clipped)
    reach = None if far is None else far.reach
    fixed = call.mask, position, call.scale, call.shape
    attention = TiledAttention(*fixed, keep, function, reach)
    terms, far_rows = relative or RelativeTerms(), clipped_rows or (None,) * 4
    return attention((q, k, v, call.sinks, raw_queries, *terms, *far_rows), _learned(call))


def _by_operator(call: Call, keep: Keep | None) -> tuple[Tensor, Tensor]:
    """Run the call as one operator of a compiled graph."""
    q, k, v, raw_queries = _packed(call)
    position = call.position
    acts = position.acts_after_content
    moving = (position.after_content, raw_queries) if acts else (None, None)
    written = encode(call.mask, *moving, keep, call.softcap)
    qkv = _even(call, q, k, v)
    settings = (call.shape.offset, call.scale, call.sinks)
    results: tuple[Tensor, Tensor] = operator(*qkv, *written, *settings)
    return results


def _packed(call: Call) -> list[Tensor]:
    """Return rotated q and k, v, and the unrotated queries, each with last stride 1."""
    q, k = call.position.content(call.q, call.k, call.shape)
    return [kernel.packed(tensor) for tensor in widen_for_sinks(call, q, k, call.v, call.q)]


def _even(call: Call, *tensors: Tensor) -> list[Tensor]:
    """Pad the tensors to one last size if the fused kernel computes all parts."""
    even = kernel.fused(tensors[0]) and Stage.VALUES not in call.position.stages
    return kernel.even(*tensors) if even else list(tensors)


def _learned(call: Call) -> list[Tensor]:
    """Return the tensors that need a gradient and that the mask's or the position's terms use."""
    if not call.biased and Stage.VALUES not in call.position.stages:
        return []
    of_mask = encode(call.mask)[1] if encodable(call.mask) else []
    return [t for t in (*call.position.parameters(), *of_mask) if t.requires_grad]


__all__ = ["NAME", "run", "why_not", "worthwhile"]
