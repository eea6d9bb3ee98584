"""Make a loaded target callable: a function of q, k and v, an adapter, or one with own weights."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.verify.checks import Subject, attempt, compute, unmasked_job
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import Job, Outcome, copied
from headwise.verify.target import NotRecognised
from headwise.verify.target.calls.guarded_call import (
    CallLog,
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
from headwise.verify.target.calls.mask_forms import MaskForm
from headwise.verify.target.calls.signature import Signature
from headwise.verify.target.construction.construct import Construction
from headwise.verify.target.conventions import Conventions, Masks, Runner
from headwise.verify.target.module_runner import ModuleRunner
from headwise.verify.target.parameters.locate import in_dtype

Order = Literal["b h l d", "b l h d", "bh l d", "l d"]
"""The axes of q, k and v: heads before or after the length, heads as samples, or one head."""


@dataclass(frozen=True, eq=False)
class FunctionRunner(Runner):
    """A function of q, k, v (B, H, L, D), or of such NumPy arrays, within correct projections."""

    function: Callable[..., object]
    signature: Signature
    log: CallLog = no_log
    options: Mapping[str, object] = field(default_factory=dict)
    arrays: bool = False
    order: Order = "b h l d"
    shared: int | None = None
    construction: Construction | None = None

    @property
    def differentiable(self) -> bool:
        return not self.arrays

    @property
    def groups(self) -> int | None:
        return self.shared

    @property
    def variants(self) -> tuple[Runner, ...]:
        orders: tuple[Order, ...] = ("b h l d", "bh l d", "b l h d", "l d")
        orders = orders if self.shared is None else ("b h l d",)
        return tuple(
            replace(self, arrays=arrays, order=order)
            for order in orders
            for arrays in (False, True)
        )

    def wants_arrays(self, job: Job, masks: Masks) -> bool:
        """Whether it passes its tensors to NumPy, which rejects those with gradients."""
        if self.arrays:
            return False
        try:
            self.run(job.tracked(), masks)
        except RuntimeError as error:
            return "numpy" in str(error).lower()
        except Exception:
            return False
        return False

    def run(self, job: Job, masks: Masks) -> Outcome:
        q, k, v = steps.projected_heads(job)
        shape = (*q.shape[:3], v.shape[3])
        if self.order == "l d":
            return self._head_by_head(job, (q, k, v), masks)
        inputs = tuple(in_order(x, self.order) for x in (q, k, v))
        tensors, wrote = self._called(inputs, masks, job)
        tensors = [_back(t, self.order, shape) for t in tensors]
        heads = next((t for t in tensors if tuple(t.shape) == shape), None)
        if heads is None:
            raise no_output(tensors, tensors, shape)
        weights = weights_in([t for t in tensors if t is not heads], job)
        return Outcome(steps.joined_output(job, heads), weights, wrote)

    def _called(
        self, inputs: tuple[Tensor, ...], masks: Masks, job: Job
    ) -> tuple[list[Tensor], tuple[str, ...]]:
        """The tensors that one call returns, and the inputs that it modified."""
        q, k, v = inputs
        arguments = self.signature.arguments(q, k, v) | dict(masks) | dict(self.options)
        actual = arrays_of(arguments) if self.arrays else arguments
        call = partial(self.function, **actual)
        result, wrote = watched(call, arguments, self.log, job.rng_seed)
        if self.arrays:
            wrote = changed(arguments, actual)
        found = tensors_in(tensors_of(result, q.dtype) if self.arrays else result)
        if not found:
            raise no_output(result, found, tuple(q.shape))
        return found, wrote

    def _head_by_head(self, job: Job, heads: tuple[Tensor, ...], masks: Masks) -> Outcome:
        """The outcome of a function of one head of one sample (L, D)."""
        q, k, v = heads
        samples, wrote = [], list[str]()
        for b in range(q.shape[0]):
            rows = []
            for h in range(q.shape[1]):
                own = {n: m[b] if m.shape[:1] == q.shape[:1] else m for n, m in masks.items()}
                found, changes = self._called((q[b, h], k[b, h], v[b, h]), own, job)
                shape = (q.shape[2], v.shape[3])
                row = next((t for t in found if tuple(t.shape) == shape), None)
                if row is None:
                    raise no_output(found, found, shape)
                rows.append(row)
                wrote += changes
            samples.append(torch.stack(rows))
        output = steps.joined_output(job, torch.stack(samples))
        return Outcome(output, None, tuple(dict.fromkeys(wrote)))


def in_order(x: Tensor, order: Order) -> Tensor:
    """(B, H, L, D) with its axes in another order; the first head of the first sample for one."""
    if order == "l d":
        return x[0, 0]
    return x.flatten(0, 1) if order == "bh l d" else x.transpose(1, 2) if order == "b l h d" else x


def _back(x: Tensor, order: Order, shape: tuple[int, ...]) -> Tensor:
    """A result in the order (B, H, L, D), where it is one."""
    if order == "bh l d" and x.dim() == 3 and x.shape[0] == shape[0] * shape[1]:
        return x.reshape(*shape[:2], *x.shape[1:])
    return x.transpose(1, 2) if order == "b l h d" and x.dim() == 4 else x


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


@dataclass(frozen=True, eq=False)
class BlackBoxRunner(Runner):
    """A module with its own weights, not the job's; `why` is the error of the search for them."""

    module: ModuleRunner
    why: NotRecognised
    signature: Signature
    drops: bool = False

    @property
    def axes(self) -> str:
        """The order of its inputs' axes."""
        return self.module.axes

    @property
    def sequence_first(self) -> bool:
        """Whether it takes (L, B, E)."""
        return self.module.sequence_first

    @property
    def variants(self) -> tuple[Runner, ...]:
        modules = (
            replace(self.module, axes=axes, signature=signature)
            for axes in self.module.orders
            for signature in (self.signature, *self.module.roles)
        )
        return tuple(replace(self, module=m, signature=m.signature) for m in modules)

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
