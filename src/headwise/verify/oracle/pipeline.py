"""Multi-head attention taken apart, so that any step of it can be replaced by a wrong one."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headwise.call import Call, Result
from headwise.masks import Mask
from headwise.masks.mask import And, Not, Or
from headwise.masks.patterns.from_tensor import FromTensor
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import Job, chance
from headwise.verify.oracle.steps import At

Trace = dict[str, Tensor]
"""Every quantity of one run by its name, in the order of `QUANTITIES`."""

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
"""What a run shows on the way, and the step that makes it."""


@dataclass(frozen=True)
class Pipeline:
    """The steps of attention, the right ones unless replaced.

    Example:
        >>> from headwise.verify.mistakes import MISTAKES
        >>> Pipeline().having(MISTAKES[0].replacement).softmax is steps.softmax
        False
    """

    project: Callable[[At, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = steps.project
    split: Callable[[At, Tensor, int], Tensor] = steps.split
    group: Callable[[At, Tensor], Tensor] = steps.group
    score: Callable[[At, Tensor, Tensor], Tensor] = steps.score
    scale: Callable[[At, Tensor], Tensor] = steps.scale
    mask: Callable[[At, Tensor], Tensor] = steps.mask
    softmax: Callable[[At, Tensor], Tensor] = steps.softmax
    dropout: Callable[[At, Tensor], Tensor] = steps.dropout
    mix: Callable[[At, Tensor, Tensor], Tensor] = steps.mix
    merge: Callable[[At, Tensor], Tensor] = steps.merge
    output: Callable[[At, Tensor], Tensor] = steps.output

    def having(self, replacement: Mapping[str, Callable[..., Any]]) -> "Pipeline":
        """This pipeline with some steps replaced, by name."""
        return dataclasses.replace(self, **replacement)

    def run(self, job: Job) -> Trace:
        """A whole module: projections, attention, output projection."""
        if self.dropout is steps.dropout and not job.training:
            return self._run(job)
        with chance(job.chance):
            return self._run(job)

    def _run(self, job: Job) -> Trace:
        at = at_job(job)
        q, k, v = self.project(at, job.query, job.key, job.value)
        q_heads = self.split(at, q, job.heads)  # (B, H, Lq, D)
        k_heads, v_heads = (self.split(at, x, job.groups) for x in (k, v))  # (B, G, Lk, D)
        inside = self._inside(at, q_heads, k_heads, v_heads)
        merged = self.merge(at, inside["heads"])  # (B, Lq, H Dv)
        return {
            "q": q,
            "k": k,
            "v": v,
            **inside,
            "merged": merged,
            "output": self.output(at, merged),
        }

    def attend(self, call: Call) -> Result:
        """The attention alone: an engine, as wrong as its steps."""
        trace = self._inside(_at_call(call), call.q, call.k, call.v)
        return Result(
            output=trace["heads"],
            weights=trace["weights"].to(call.q.dtype) if "weights" in call.need else None,
            logsumexp=trace["scores"].logsumexp(-1) if "logsumexp" in call.need else None,
        )

    def _inside(self, at: At, q: Tensor, k: Tensor, v: Tensor) -> Trace:
        k, v = self.group(at, k), self.group(at, v)
        dots = self.score(at, q, k)
        scaled = self.scale(at, dots)
        scores = self.mask(at, scaled)
        weights = self.softmax(at, scores)
        heads = self.mix(at, self.dropout(at, weights), v)
        return {
            "q_heads": q,
            "k_heads": k,
            "v_heads": v,
            "dots": dots,
            "scaled": scaled,
            "scores": scores,
            "weights": weights,
            "heads": heads,
        }


def at_job(job: Job) -> At:
    """What the steps of a whole module look at."""
    head_dim = job.weights.q.shape[0] // job.heads
    return At(
        frame=job.frame,
        mask=job.mask,
        scale=head_dim**-0.5,
        embed_dim=job.query.shape[-1],
        groups=job.groups,
        dropout=job.dropout,
        training=job.training,
        weights=job.weights,
    )


def _at_call(call: Call) -> At:
    return At(
        frame=call.frame,
        mask=_loose(call.mask),
        scale=call.scale,
        embed_dim=call.q.shape[1] * call.q.shape[3],
        groups=call.k.shape[1],
        dropout=call.dropout,
        training=call.dropout > 0,
    )


def _loose(mask: Mask) -> Mask:
    """The mask as it was before it was resolved, so that another frame can resolve it."""
    if isinstance(mask, And | Or):
        return type(mask)(_loose(mask.left), _loose(mask.right))
    if isinstance(mask, Not):
        return Not(_loose(mask.inner))
    return FromTensor(mask.tensor, mask.layout) if isinstance(mask, FromTensor) else mask
