"""What a target chose that no mask shows: causal flags, hooks, NaN behind a mask, rotations."""

import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from headwise.call import Call
from headwise.lang import Text
from headwise.masks import causal, from_tensor, padding
from headwise.positions import Rotary
from headwise.reference import reference
from headwise.verify import steps
from headwise.verify.budget import judge
from headwise.verify.conventions import LENGTH, Conventions
from headwise.verify.functions import FunctionRunner
from headwise.verify.jobs import Job, cross_job, self_job
from headwise.verify.judging import judge_job
from headwise.verify.modules import ModuleRunner
from headwise.verify.pipeline import at_job
from headwise.verify.subject import Outcome, Subject, compute

OF_QUERIES = re.compile(r"(?i)(^|[._])(q|k|query|key)_?(layer_?)?(norm|ln)$")
"""Modules that normalise queries or keys, by their names."""

QUERIES = 5
"""Fewer queries than keys, so that the two ways of aligning a causal mask differ."""


def choices(conventions: Conventions, subject: Subject) -> Iterator[Text]:
    """The notes for a report."""
    runner = conventions.runner
    if isinstance(runner, ModuleRunner | FunctionRunner):
        for flag in runner.signature.flags:
            yield from _aligned(replace(conventions, runner=_with(runner, flag)), flag, subject)
    if isinstance(runner, ModuleRunner):
        yield from _around(runner)
        yield from _silent_hooks(runner, subject)
        for argument in runner.signature.angles:
            yield _turned(conventions, runner, argument, subject)
    yield from _leaks(subject)


def _with(runner: ModuleRunner | FunctionRunner, flag: str) -> ModuleRunner | FunctionRunner:
    return replace(runner, given={flag: True})


def _aligned(asked: Conventions, flag: str, subject: Subject) -> Iterator[Text]:
    """Where a causal flag puts the diagonal when there are fewer queries than keys."""
    same = subject.fit(self_job(subject.embed_dim, subject.heads, length=LENGTH))
    outcome = _attempt(asked, same)
    if outcome is None:
        yield Text("{flag}: it raises where no mask is given", flag=flag)
        return
    if not judge_job(outcome, replace(same, mask=causal())).accepted:
        yield Text("{flag}=True is no causal mask: the output is another one", flag=flag)
        return
    job = cross_job(subject.embed_dim, subject.heads, lengths=(QUERIES, LENGTH))
    job = subject.fit(job)
    outcome = None if subject.refuses(job) is not None else _attempt(asked, job)
    if outcome is None:
        yield Text("{flag}=True is a causal mask", flag=flag)
    elif judge_job(outcome, replace(job, mask=causal())).accepted:
        yield Text(
            "{flag}=True with fewer queries than keys: lower-right, the last query sees every key",
            flag=flag,
        )
    elif judge_job(outcome, replace(job, mask=from_tensor(_upper_left(), "q k"))).accepted:
        yield Text(
            "{flag}=True with fewer queries than keys: upper-left, the first query sees "
            "the first key only and the last keys are never seen; headwise's causal() is "
            "lower-right",
            flag=flag,
        )


def _upper_left() -> Tensor:
    return torch.ones(QUERIES, LENGTH, dtype=torch.bool).tril()


def _attempt(conventions: Conventions, job: Job) -> Outcome | None:
    try:
        return conventions.runner.run(job, {})
    except Exception:
        return None


def _around(runner: ModuleRunner) -> Iterator[Text]:
    """What of the module stood outside of what was verified."""
    if runner.reached:
        yield Text(
            "the attention was reached at {reached}; what is around it was not verified",
            reached=runner.reached,
        )
    module = runner.make(0.0)
    inside = ", ".join(name for name, _ in module.named_modules() if OF_QUERIES.search(name))
    if inside:
        yield Text(
            "{inside}: it normalises its queries or keys, which attention by its "
            "definition does not: what differs may be that, on purpose",
            inside=inside,
        )
    own = getattr(module, "scaling", None)
    if own == 1:
        yield Text(
            "its own attribute scaling is 1: it leaves out the division by sqrt(D) on "
            "purpose, as T5 does, whose initialisation makes up for it"
        )
    if runner.binding.silenced:
        names = ", ".join(name for name, _ in runner.binding.silenced)
        yield Text("{names}: set to 0, not verified", names=names)
    if runner.binding.groups is not None:
        count = runner.binding.groups
        yield Text("it has {count} key/value heads, shared by its query heads", count=count)


def _silent_hooks(runner: ModuleRunner, subject: Subject) -> Iterator[Text]:
    """Submodules that hold a projection and are never called, so that no hook on them fires."""
    module = runner.make(0.0)
    names = {
        place.name.rpartition(".")[0]
        for places in runner.binding.places.values()
        for place in places
    }
    inner = {name: module.get_submodule(name) for name in names if name}
    called: set[str] = set()
    handles = [_notes(each, name, called) for name, each in inner.items()]
    job = subject.fit(self_job(subject.embed_dim, subject.heads, length=LENGTH))
    try:
        ran = compute(subject, job) is not None
    except Exception:
        ran = False
    finally:
        for handle in handles:
            handle.remove()
    missed = ", ".join(sorted(set(inner) - called))
    if ran and missed:
        yield Text(
            "hooks on {missed} are not called: its weights are used without calling it",
            missed=missed,
        )


def _notes(module: nn.Module, name: str, called: set[str]) -> "torch.utils.hooks.RemovableHandle":
    return module.register_forward_pre_hook(lambda *_: called.add(name))


def _leaks(subject: Subject) -> Iterator[Text]:
    """Whether a NaN that is hidden behind a mask comes through; headwise keeps it out."""
    real = LENGTH - 3
    job = subject.fit(
        self_job(subject.embed_dim, subject.heads, length=LENGTH, mask=padding([LENGTH, real]))
    )
    x = job.query.clone()
    x[1, real:] = torch.nan
    try:
        outcome = compute(subject, replace(job, query=x, key=x, value=x))
    except Exception:
        outcome = None
    if outcome is not None and bool(outcome.output[1, :real].isnan().any()):
        yield Text(
            "NaN in a masked value reaches the output (0 · NaN is NaN); headwise keeps it out"
        )


def _turned(
    conventions: Conventions, runner: ModuleRunner, argument: str, subject: Subject
) -> Text:
    """How q and k are turned by the cosines and sines of consecutive positions."""
    job = self_job(subject.embed_dim, subject.heads, length=LENGTH, mask=conventions.base)
    job = subject.fit(job)
    dim = job.weights.q.shape[0] // job.heads
    unturned = Text(
        "{argument}: angles of 0 were given, so that nothing turns; its rotation was not tried",
        argument=argument,
    )
    if dim % 2:
        return unturned
    angles = torch.arange(LENGTH)[:, None] * 10000.0 ** -(torch.arange(0, dim, 2) / dim)
    for pairs, spread in (
        ("halves", torch.cat((angles, angles), -1)),
        ("neighbours", angles.repeat_interleave(2, -1)),
    ):
        whole = spread.expand(job.query.shape[0], -1, -1).to(job.query.dtype)
        given = {argument: (whole.cos(), whole.sin())}
        try:
            masks = conventions.masks(job) or {}
            outcome = replace(runner, given=given).run(job, masks)
        except Exception:
            return unturned
        if _rotated(outcome, job, pairs):
            return Text(
                '{argument}: q and k are turned as Rotary(pairs="{pairs}") does (found by trying)',
                argument=argument,
                pairs=pairs,
            )
    return Text(
        "{argument}: q and k are turned otherwise than by Rotary, or not at all", argument=argument
    )


def _rotated(outcome: Outcome, job: Job, pairs: str) -> bool:
    plain, exact = (
        _with_rotary(job.to(dtype), pairs) for dtype in (job.query.dtype, torch.float64)
    )
    return judge(outcome.output, plain, exact).accepted


def _with_rotary(job: Job, pairs: str) -> Tensor:
    """The job by the reference, with rotated q and k, in its own dtype."""
    at = at_job(job)
    counts = (job.heads, job.groups, job.groups)
    parts = steps.project(at, job.query, job.key, job.value)
    q, k, v = (steps.split(at, x, n) for x, n in zip(parts, counts, strict=True))
    rotary = Rotary(q.shape[-1], pairs=pairs)
    call = Call.of(q, k, v, mask=job.mask, position=rotary)
    return steps.output(at, steps.merge(at, reference(call, q.dtype).output.to(q.dtype)))
