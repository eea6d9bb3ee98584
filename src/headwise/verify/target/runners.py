"""Make a loaded target callable: a function of q, k and v, an adapter, or a module."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import Job, Outcome, self_job
from headwise.verify.oracle.pipeline import at_job
from headwise.verify.target import not_recognised
from headwise.verify.target.conventions import Masks, Runner
from headwise.verify.target.guarded_call import (
    Tell,
    arrays_of,
    changed,
    copied,
    guarded,
    no_output,
    outcome,
    silent,
    tensors_in,
    tensors_of,
    versions,
    weights_in,
    written,
)
from headwise.verify.target.module_runner import of_class, of_instance
from headwise.verify.target.signature import (
    Form,
    Signature,
    forms_for,
    parameters_of,
    read_signature,
)


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


def runner(target: object, name: str, embed_dim: int, heads: int, tell: Tell = silent) -> Runner:
    """What a loaded target is, by looking at it.

    Args:
        target: a class of modules, a module, or a function.
        name: how messages call it.
        embed_dim: E.
        heads: H.
        tell: told of every call before it is made.

    Raises:
        BadFile: if it is not recognised; the message shows the adapter to write.
        BadValue: if embed_dim is no multiple of heads.
    """
    if heads < 1 or embed_dim < 1 or embed_dim % heads:
        raise BadValue(
            "embed_dim: expected a multiple of heads, got {embed_dim} with {heads} "
            "heads; use --embed-dim {example}",
            embed_dim=embed_dim,
            heads=heads,
            example=max(heads, 1) * 5,
        )
    weights = self_job(embed_dim, heads).weights
    if isinstance(target, type) and issubclass(target, nn.Module):
        return replace(of_class(target, name, weights, heads), tell=tell)
    if isinstance(target, nn.Module):
        return replace(of_instance(target, name, weights, heads), tell=tell)
    if isinstance(target, type) or not callable(target):
        raise not_recognised(Text("{name} is neither a torch.nn.Module nor a function", name=name))
    if [p.name for p in parameters_of(target, name)][1:2] == ["weights"]:
        return AdapterRunner(target, tell=tell)
    signature = read_signature(target, name)
    if len(signature.tensors) != 3:
        raise not_recognised(
            Text(
                "the function {name} takes {count} tensors, expected q, k, v",
                name=name,
                count=len(signature.tensors),
            )
        )
    return FunctionRunner(target, signature, tell=tell)
