"""Somebody's function, made callable: of q, k and v, or an adapter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from headwise.verify import steps
from headwise.verify.arrays import arrays_of, changed, tensors_of
from headwise.verify.calling import Form, Signature, forms_for
from headwise.verify.jobs import Job
from headwise.verify.pipeline import at_job
from headwise.verify.returned import (
    copied,
    no_output,
    outcome,
    tensors_in,
    versions,
    weights_in,
    written,
)
from headwise.verify.runners import Masks, Runner
from headwise.verify.running import Tell, guarded, silent
from headwise.verify.subject import Outcome


@dataclass(frozen=True, eq=False)
class FunctionRunner:
    """A function of q, k, v (B, H, L, D); the projections around it are the right ones.

    Attributes:
        function: somebody's.
        signature: how it takes its tensors.
        tell: told of every call before it is made.
        given: other arguments of every call.
        arrays: whether it works on NumPy's arrays.
    """

    function: Callable[..., object]
    signature: Signature
    lacks: frozenset[str] = frozenset()
    groups: int | None = None
    drops: bool = False
    tell: Tell = silent
    given: Mapping[str, object] = field(default_factory=dict)
    arrays: bool = False

    @property
    def differentiable(self) -> bool:
        """Whether gradients can be asked for."""
        return not self.arrays

    @property
    def forms(self) -> tuple[Form, ...]:
        return forms_for(self.signature)

    @property
    def variants(self) -> tuple[Runner, ...]:
        return (self, replace(self, arrays=True))

    def run(self, job: Job, masks: Masks) -> Outcome:
        at = at_job(job)
        parts = steps.project(at, job.query, job.key, job.value)
        counts = (job.heads, job.groups, job.groups)
        q, k, v = (
            steps.split(at, x, n) for x, n in zip(parts, counts, strict=True)
        )  # (B, H, L, D)
        arguments = self.signature.arguments(q, k, v) | dict(masks) | dict(self.given)
        given = arrays_of(arguments) if self.arrays else arguments
        before = versions(arguments)
        result = guarded(lambda: self.function(**given), arguments, self.tell, job.chance)
        wrote = changed(arguments, given) if self.arrays else written(arguments, before)
        found = tensors_in(tensors_of(result, q.dtype) if self.arrays else result)
        shape = (*q.shape[:3], v.shape[3])
        heads = next((t for t in found if tuple(t.shape) == shape), None)
        if heads is None:
            raise no_output(result, found, shape)
        output = steps.output(at, steps.merge(at, heads))
        return Outcome(output, weights_in([t for t in found if t is not heads], job), wrote)


@dataclass(frozen=True, eq=False)
class AdapterRunner:
    """A function of x, weights, heads and mask: what the user writes where nothing else helps."""

    function: Callable[..., object]
    signature: Signature = field(
        default=Signature((("x", "x"),), ("mask",), needs_mask=False, extras={})
    )
    lacks: frozenset[str] = frozenset()
    groups: int | None = None
    drops: bool = False
    differentiable: bool = True
    forms: tuple[Form, ...] = (Form("mask", "b h q k", "may"),)
    tell: Tell = silent

    @property
    def variants(self) -> tuple[Runner, ...]:
        return (self,)

    def run(self, job: Job, masks: Masks) -> Outcome:
        given = {"x": copied(job)[0], "mask": masks.get("mask")}
        before = versions(given)
        result = guarded(
            lambda: self.function(given["x"], job.weights, job.heads, given["mask"]),
            given,
            self.tell,
            job.chance,
        )
        return replace(outcome(result, job), wrote=written(given, before))
