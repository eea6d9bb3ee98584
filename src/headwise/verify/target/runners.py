"""Make a loaded target callable: a function of q, k and v, an adapter, or a module."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial

import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.verify.checks import Subject, attempt, compute, unmasked_job
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import Job, Outcome, copied, self_job
from headwise.verify.target import NotRecognised, not_recognised
from headwise.verify.target.construct import in_dtype
from headwise.verify.target.conventions import (
    CallLog,
    Conventions,
    Masks,
    Runner,
    arrays_of,
    changed,
    no_log,
    no_output,
    outcome,
    tensors_in,
    tensors_of,
    watched,
    weights_in,
)
from headwise.verify.target.module_runner import ModuleRunner, of_class, of_instance
from headwise.verify.target.signature import MaskForm, Signature, parameters_of, read_signature


@dataclass(frozen=True, eq=False)
class FunctionRunner(Runner):
    """A function of q, k, v (B, H, L, D), or of such NumPy arrays, within correct projections."""

    function: Callable[..., object]
    signature: Signature
    log: CallLog = no_log
    options: Mapping[str, object] = field(default_factory=dict)
    arrays: bool = False

    @property
    def differentiable(self) -> bool:
        return not self.arrays

    @property
    def variants(self) -> tuple[Runner, ...]:
        return (self, replace(self, arrays=True))

    def run(self, job: Job, masks: Masks) -> Outcome:
        q, k, v = steps.projected_heads(job)
        arguments = self.signature.arguments(q, k, v) | dict(masks) | dict(self.options)
        actual = arrays_of(arguments) if self.arrays else arguments
        call = partial(self.function, **actual)
        result, wrote = watched(call, arguments, self.log, job.rng_seed)
        if self.arrays:
            wrote = changed(arguments, actual)
        tensors = tensors_in(tensors_of(result, q.dtype) if self.arrays else result)
        shape = (*q.shape[:3], v.shape[3])
        heads = next((t for t in tensors if tuple(t.shape) == shape), None)
        if heads is None:
            raise no_output(result, tensors, shape)
        weights = weights_in([t for t in tensors if t is not heads], job)
        return Outcome(steps.joined_output(job, heads), weights, wrote)


@dataclass(frozen=True, eq=False)
class AdapterRunner(Runner):
    """A function of x, weights, heads and mask, which the user writes for any other target."""

    function: Callable[..., object]
    signature: Signature = field(
        default=Signature((("x", "x"),), ("mask",), needs_mask=False, extras={})
    )
    log: CallLog = no_log

    @property
    def forms(self) -> tuple[MaskForm, ...]:
        return (MaskForm("mask", "b h q k", "may"),)

    def run(self, job: Job, masks: Masks) -> Outcome:
        x, mask = copied(job.query), masks.get("mask")
        call = partial(self.function, x, job.weights, job.heads, mask)
        result, wrote = watched(call, {"x": x, "mask": mask}, self.log, job.rng_seed)
        return replace(outcome(result, job), wrote=wrote)


def runner(target: object, name: str, embed_dim: int, heads: int, log: CallLog = no_log) -> Runner:
    """The runner of a loaded target: a class of modules, a module, or a function.

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
        return replace(of_class(target, name, weights, heads), log=log)
    if isinstance(target, nn.Module):
        return replace(of_instance(target, name, weights, heads), log=log)
    if isinstance(target, type) or not callable(target):
        raise not_recognised(Text("{name} is neither a torch.nn.Module nor a function", name=name))
    if [p.name for p in parameters_of(target, name)][1:2] == ["weights"]:
        return AdapterRunner(target, log=log)
    signature = read_signature(target, name)
    count = len(signature.tensors)
    if count != 3:
        reason = Text(
            "the function {name} takes {count} tensors, expected q, k, v", name=name, count=count
        )
        raise not_recognised(reason)
    return FunctionRunner(target, signature, log=log)


@dataclass(frozen=True, eq=False)
class BlackBoxRunner(Runner):
    """A module with its own weights, not the job's; `why` is the error of the search for them."""

    module: ModuleRunner
    why: NotRecognised
    signature: Signature
    drops: bool = False

    @property
    def sequence_first(self) -> bool:
        """Whether it takes (L, B, E)."""
        return self.module.sequence_first

    @property
    def variants(self) -> tuple[Runner, ...]:
        orders = (False, True) if self.module.either_axis_order else (False,)
        modules = (replace(self.module, sequence_first=order) for order in orders)
        return tuple(replace(self, module=module) for module in modules)

    def run(self, job: Job, masks: Masks) -> Outcome:
        instance = in_dtype(self.module.make(job.dropout), job.query.dtype)
        return self.module.called(instance.train(job.training), {}, job, masks)


def subject_of(conventions: Conventions, name: str) -> Subject:
    """The target as a subject that is compared with its own float64 outputs."""
    subject = conventions.subject(name, *conventions.size)
    return replace(subject, ways=None, together=None, truth=_truth(subject))


def _truth(subject: Subject) -> Callable[[Job, torch.dtype], Tensor]:
    result = attempt(subject, unmasked_job(subject, torch.float64))
    wide = result is not None and result.output.dtype == torch.float64

    def truth(job: Job, dtype: torch.dtype) -> Tensor:
        if dtype == torch.float64 and not wide:
            return _given(subject, job.to(torch.float32)).double()
        if dtype == torch.float32 and not wide:
            x = torch.nextafter(job.query, torch.full_like(job.query, torch.inf))
            job = job.with_input(x) if job.alike else replace(job, query=x)
        return _given(subject, job.to(dtype))

    return truth


def _given(subject: Subject, job: Job) -> Tensor:
    outcome = compute(subject, job)
    if outcome is None:
        raise ValueError(f"{subject.name}: it does not offer what it is to be held against")
    return outcome.output.detach()


BACKEND = "aot_eager"  # the backend traces forward and backward, and requires no C++ compiler


def compiled(conventions: Conventions) -> Conventions | None:
    """The same conventions of the target under `torch.compile`; None where nothing can be compiled.

    A module is copied, so that the original stays as it is.
    """
    runner = conventions.runner
    if isinstance(runner, ModuleRunner):
        make = runner.make
        instance: Callable[[float], nn.Module] = cache(lambda p: _module(make(p)))
        return replace(conventions, runner=replace(runner, make=instance))
    if isinstance(runner, FunctionRunner) and not runner.arrays:
        function = torch.compile(runner.function, backend=BACKEND)
        return replace(conventions, runner=replace(runner, function=function))
    return None


def _module(module: nn.Module) -> nn.Module:
    copy = deepcopy(module)
    copy.compile(backend=BACKEND)
    return copy
