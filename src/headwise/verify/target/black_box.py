"""A target whose weights could not be found, held against itself alone.

It is called with the weights that it was made with. What it gives in float64 stands in for the
oracle; where it takes no float64, what it gives in float32, with the change that one rounding of
its input makes for the noise of that.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from headwise.masks import causal, full
from headwise.verify.checks import LENGTH, Check, Subject, compute, expected, offered, own
from headwise.verify.checks.contract import CONTRACT
from headwise.verify.checks.metamorphic import METAMORPHIC
from headwise.verify.oracle.jobs import Job, Outcome
from headwise.verify.oracle.tolerance import Evidence, judge
from headwise.verify.target import NotRecognised
from headwise.verify.target.construct import in_dtype, make, takes_dropout
from headwise.verify.target.conventions import Conventions, Masks, Runner
from headwise.verify.target.discovery import observe
from headwise.verify.target.guarded_call import Tell
from headwise.verify.target.module_runner import ModuleRunner
from headwise.verify.target.parameter_names import Binding
from headwise.verify.target.signature import Form, Signature, read_signature

TIMES = 37
"""How often a short sequence is repeated for a long one; a prime, so that no block ends with it."""


@dataclass(frozen=True, eq=False)
class BlackBoxRunner:
    """A module with the weights that it was made with; the job's are not used.

    Attributes:
        module: the module, called in its own way.
        why: why its weights are not known.
    """

    module: ModuleRunner
    why: NotRecognised
    lacks: frozenset[str] = frozenset()
    groups: int | None = None

    @property
    def signature(self) -> Signature:
        return self.module.signature

    @property
    def forms(self) -> tuple[Form, ...]:
        return self.module.forms

    @property
    def drops(self) -> bool:
        return self.module.drops

    @property
    def differentiable(self) -> bool:
        """Whether gradients can be asked for."""
        return True

    @property
    def tell(self) -> Tell:
        return self.module.tell

    @property
    def sequence_first(self) -> bool:
        """Whether it takes (L, B, E)."""
        return self.module.sequence_first

    @property
    def variants(self) -> tuple[Runner, ...]:
        orders = (False, True) if self.module.turnable else (False,)
        turned = (replace(self.module, sequence_first=order) for order in orders)
        return tuple(replace(self, module=module) for module in turned)

    def run(self, job: Job, masks: Masks) -> Outcome:
        made = in_dtype(self.module.make(job.dropout), job.query.dtype)
        return self.module.called(made.train(job.training), {}, job, masks)


def black_box(
    target: object, name: str, size: tuple[int, int], seed: int, why: NotRecognised, tell: Tell
) -> Conventions | None:
    """How a target with unknown weights is called, or None where that is not enough either.

    Args:
        target: what was asked for.
        name: how messages call it.
        size: E and H.
        seed: of the inputs.
        why: what kept its weights from being found.
        tell: told of every call before it is made.
    """
    if not isinstance(target, nn.Module) and not (
        isinstance(target, type) and issubclass(target, nn.Module)
    ):
        return None
    try:
        return observe(BlackBoxRunner(_whole(target, name, size, tell), why), *size, seed)
    except NotRecognised:
        return None


def _whole(
    target: nn.Module | type[nn.Module], name: str, size: tuple[int, int], tell: Tell
) -> ModuleRunner:
    """All of a module, with no parameter known."""

    @cache
    def made(dropout: float) -> nn.Module:
        return target if isinstance(target, nn.Module) else make(target, *size, dropout)

    cls = type(target) if isinstance(target, nn.Module) else target
    return ModuleRunner(
        make=made,
        signature=read_signature(made(0.0).forward, f"{name}.forward"),
        binding=Binding({}),
        drops=not isinstance(target, nn.Module) and takes_dropout(cls),
        turnable="batch_first" not in inspect.signature(cls).parameters,
        tell=tell,
    )


def subject_of(conventions: Conventions, name: str) -> Subject:
    """The target as a subject whose truth is itself."""
    subject = conventions.subject(name, *conventions.size)
    return replace(subject, ways=None, together=None, truth=_truth(subject))


def _truth(subject: Subject) -> Callable[[Job, torch.dtype], Tensor]:
    wide = _gives(subject, offered(subject, torch.float64))

    def truth(job: Job, dtype: torch.dtype) -> Tensor:
        if dtype == torch.float64 and not wide:
            return _given(subject, job.to(torch.float32)).double()
        if dtype == torch.float32 and not wide:
            x = torch.nextafter(job.query, torch.full_like(job.query, torch.inf))
            job = replace(job, query=x, key=x, value=x) if job.alike else replace(job, query=x)
        return _given(subject, job.to(dtype))

    return truth


def _gives(subject: Subject, job: Job) -> bool:
    """Whether a job in float64 gives float64."""
    outcome = _attempt(subject, job)
    return outcome is not None and outcome.output.dtype == torch.float64


def _attempt(subject: Subject, job: Job) -> Outcome | None:
    try:
        return compute(subject, job)
    except Exception:
        return None


def _given(subject: Subject, job: Job) -> Tensor:
    outcome = compute(subject, job)
    if outcome is None:
        raise ValueError(f"{subject.name}: it does not offer what it is to be held against")
    return outcome.output.detach()


def smallest_sizes(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """One token gives what the first of two equal ones gives; one sample what it gives of two."""
    pair = own(subject, dtype, length=2)
    x = pair.query[:, :1].expand_as(pair.query).contiguous()
    pair = replace(pair, query=x, key=x, value=x)
    yield from _part("L = 1", subject, pair, (slice(None), slice(0, 1)))
    job = offered(subject, dtype)
    yield from _part("B = 1", subject, job, (slice(0, 1), slice(None)))


def long_sequence(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Tokens repeated many times over give the same outputs over and over; a causal one begins so.

    Repeated keys share the weights that one of them had. What raises at this length is not tried.
    """
    for name, mask in (("", full()), (", causal", causal())):
        job = own(subject, dtype, mask)
        x = job.query.repeat(1, TIMES, 1)
        outcome = _attempt(subject, replace(job, query=x, key=x, value=x))
        if outcome is None:
            continue
        found = outcome.output if mask == full() else outcome.output[:, :LENGTH]
        times = TIMES if mask == full() else 1
        plain, exact = (
            expected(subject, job, d).repeat(1, times, 1) for d in (dtype, torch.float64)
        )
        yield f"L = {LENGTH * TIMES}{name}", judge(found, plain, exact)


def eval_without_dropout(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """A module made with dropout gives in eval what it gives without."""
    job = offered(subject, dtype)
    outcome = compute(subject, replace(job, dropout=0.5))
    if outcome is not None:
        plain, exact = (expected(subject, job, d) for d in (dtype, torch.float64))
        yield "eval", judge(outcome.output, plain, exact)


def _part(name: str, subject: Subject, job: Job, part: tuple[slice, slice]) -> Iterator[Evidence]:
    """A part of the input alone gives the same part of the output."""
    x = job.query[part]
    if compute(subject, job) is None:
        return
    outcome = compute(subject, replace(job, query=x, key=x, value=x))
    if outcome is not None:
        plain, exact = (expected(subject, job, d)[part] for d in (job.query.dtype, torch.float64))
        yield name, judge(outcome.output, plain, exact)


_OTHERWISE = {
    "smallest_sizes": smallest_sizes,
    "long_sequence": long_sequence,
    "eval_without_dropout": eval_without_dropout,
}
_KEPT = ("non_contiguous", "dtype_kept", "inputs_unchanged")

BLACK_BOX: tuple[Check, ...] = (
    *METAMORPHIC,
    *(check for check in CONTRACT if check.name in _KEPT),
    *(
        replace(check, probe=_OTHERWISE[check.name])
        for check in CONTRACT
        if check.name in _OTHERWISE
    ),
)
"""The checks that a target can be put to whose weights are not known."""
