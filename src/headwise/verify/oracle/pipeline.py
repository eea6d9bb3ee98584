"""Multi-head attention as a pipeline whose steps can be replaced by wrong steps."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headwise.call import Call, Result
from headwise.masks import Mask
from headwise.masks.patterns.from_tensor import FromTensor
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import Job, StepContext, seeded_rng

Trace = dict[str, Tensor]  # the quantities of a run by name, in the order of `QUANTITIES`

QUANTITIES: tuple[tuple[str, str], ...] = (
    ("q", "project"),
    ("k", "project"),
    ("v", "project"),
    ("q_heads", "split"),
    ("k_heads", "split"),
    ("v_heads", "split"),
    ("dots", "score"),
    ("scaled", "scale"),
    ("scores", "mask"),
    ("weights", "softmax"),
    ("heads", "mix"),
    ("merged", "merge"),
    ("output", "output"),
)
"""The quantities of a run, each with the step that computes it."""


@dataclass(frozen=True)
class Pipeline:
    """The steps of attention; a step is correct unless it is replaced.

    Example:
        >>> from headwise.verify.mistakes import MISTAKES
        >>> Pipeline().with_steps(MISTAKES[0].replacement).softmax is steps.softmax
        False
    """

    project: Callable[[StepContext, Tensor, Tensor, Tensor], steps.Three] = steps.project
    split: Callable[[StepContext, Tensor, int], Tensor] = steps.split
    group: Callable[[StepContext, Tensor], Tensor] = steps.group
    score: Callable[[StepContext, Tensor, Tensor], Tensor] = steps.score
    scale: Callable[[StepContext, Tensor], Tensor] = steps.scale
    mask: Callable[[StepContext, Tensor], Tensor] = steps.mask
    softmax: Callable[[StepContext, Tensor], Tensor] = steps.softmax
    dropout: Callable[[StepContext, Tensor], Tensor] = steps.dropout
    mix: Callable[[StepContext, Tensor, Tensor], Tensor] = steps.mix
    merge: Callable[[StepContext, Tensor], Tensor] = steps.merge
    output: Callable[[StepContext, Tensor], Tensor] = steps.output

    def with_steps(self, replacement: Mapping[str, Callable[..., Any]]) -> "Pipeline":
        """Return this pipeline with some steps replaced, by name."""
        return dataclasses.replace(self, **replacement)

    def run(self, job: Job) -> Trace:
        """Run a whole module: projections, attention, output projection."""
        if self.dropout is steps.dropout and not job.training:
            return self._run(job)
        with seeded_rng(job.rng_seed):
            return self._run(job)

    def _run(self, job: Job) -> Trace:
        context = job.context

        q, k, v = self.project(context, job.query, job.key, job.value)
        q_heads = self.split(context, q, job.heads)  # (B, H, Lq, D)
        k_heads, v_heads = (self.split(context, x, job.groups) for x in (k, v))  # (B, G, Lk, D)
        inside = self._inside(context, q_heads, k_heads, v_heads)
        merged = self.merge(context, inside["heads"])  # (B, Lq, H Dv)
        output = self.output(context, merged)
        return {"q": q, "k": k, "v": v, **inside, "merged": merged, "output": output}

    def attend(self, call: Call) -> Result:
        """Run the attention alone, as an engine does."""
        trace = self._inside(_call_context(call), call.q, call.k, call.v)
        return Result(
            output=trace["heads"],
            weights=trace["weights"].to(call.q.dtype) if "weights" in call.need else None,
            logsumexp=trace["scores"].logsumexp(-1) if "logsumexp" in call.need else None,
        )

    def _inside(self, context: StepContext, q: Tensor, k: Tensor, v: Tensor) -> Trace:
        trace = {"q_heads": q, "k_heads": self.group(context, k), "v_heads": self.group(context, v)}
        trace["dots"] = self.score(context, q, trace["k_heads"])
        trace["scaled"] = self.scale(context, trace["dots"])
        trace["scores"] = self.mask(context, trace["scaled"])
        trace["weights"] = self.softmax(context, trace["scores"])
        weights = self.dropout(context, trace["weights"])
        return trace | {"heads": self.mix(context, weights, trace["v_heads"])}


def _call_context(call: Call) -> StepContext:
    return StepContext(
        shape=call.shape,
        mask=_loose(call.mask),
        scale=call.scale,
        embed_dim=call.q.shape[1] * call.q.shape[3],
        groups=call.k.shape[1],
        dropout=call.dropout,
        training=call.dropout > 0,
    )


def _loose(mask: Mask) -> Mask:
    """Return the unresolved mask, which can be resolved for another shape."""
    if isinstance(mask, FromTensor):
        return FromTensor(mask.tensor, mask.layout)
    return mask.map(_loose)
