"""Attention under an LSH mask, whose cost is that of its chunks and not Lq Lk.

In each round queries and keys are sorted by bucket, and chunks of queries attend to two chunks of
keys through the fused kernel. Rounds are merged by their logsumexp; a pair counts in the first
round in which it meets. Forward and backward take O(L) memory.
"""

from collections.abc import Iterator

import torch

from headwise.call import Call, Result
from headwise.engines import kernel
from headwise.engines.autograd_transforms import needs_grad, no_transform_rule
from headwise.engines.lsh.rounds import ChunkedAttention
from headwise.engines.statistics import not_returned, widen_for_sinks
from headwise.engines.tiled.decompose import conjuncts
from headwise.engines.tiled.problem import Problem
from headwise.lang import Text
from headwise.masks import Mask
from headwise.masks.patterns.lsh import Hashed
from headwise.positions import Stage

NAME = "lsh"

SHORT = 512
"""Keys below which all scores are cheap to hold."""

SHARE = 0.5
"""The largest share of pairs in the chunks for which they are worthwhile."""


def why_not(call: Call) -> Iterator[Text]:
    """Every reason why this engine cannot run the call."""
    one = len(_hashed(call.mask)) == 1
    if not one:
        yield Text("the mask is not one lsh(...), alone or with others by &")
    if "logsumexp" in call.need and needs_grad(call):
        yield Text("its logsumexp has no gradient; use torch.no_grad()")
    if call.dropout > 0:
        yield Text("it has no dropout")
    if call.empty:
        yield Text("a size is 0")
    if {Stage.SCORES, Stage.VALUES} & call.position.stages:
        yield Text(
            "{name} adds to the scores or the values, and every head has its own order here",
            name=type(call.position).__name__,
        )
    if one and call.bias_requires_grad():
        yield Text("the mask's bias wants a gradient")
    if torch.compiler.is_compiling():
        yield Text("it has no rule for torch.compile")
    yield from no_transform_rule(call)
    yield from not_returned(call.need, ("logsumexp",))


def worthwhile(call: Call) -> bool:
    """Whether the chunks hold at most half of all pairs, in a sequence that is not short."""
    if call.shape.keys < SHORT or len(_hashed(call.mask)) != 1:
        return False
    return pairs(call) <= SHARE * call.shape.queries * call.shape.keys


def pairs(call: Call) -> int:
    """How many pairs of query and key a head computes, when no chunk is short."""
    (hashed,) = _hashed(call.mask)
    return call.shape.queries * min(2 * hashed.chunk, call.shape.keys) * hashed.keys.shape[2]


def run(call: Call) -> Result:
    """Attention round by round."""
    q, k = call.position.content(call.q, call.k, call.shape)
    problem = Problem(q, k, call.v, q, call.mask, call.position, call.scale, call.shape)
    clean = problem.zero_masked()
    (hashed,) = _hashed(call.mask)
    rest = tuple(mask for mask in conjuncts(call.mask) if mask is not hashed)
    width = call.v.shape[3]
    widest = max(q.shape[3], width)
    rows = (kernel.widened(t, widest) for t in widen_for_sinks(call, q, clean.k, clean.v))
    function = ChunkedAttention(call, hashed, rest)
    output, logsumexp = function((*(t.contiguous() for t in rows), call.sinks))
    sums = logsumexp.detach() if "logsumexp" in call.need else None
    return Result(output[..., :width].to(call.v.dtype), logsumexp=sums)


def _hashed(mask: Mask) -> list[Hashed]:
    return [part for part in conjuncts(mask) if isinstance(part, Hashed)]


__all__ = ["NAME", "pairs", "run", "why_not", "worthwhile"]
