"""Whether a target gives the same under `torch.compile`: a check apart, since it takes time."""

import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache

import torch
from torch import nn

from headwise.lang import Text
from headwise.masks import causal, full, padding
from headwise.verify.checks import Check, Subject, compute
from headwise.verify.oracle import oracle
from headwise.verify.oracle.jobs import Job, Outcome, self_job
from headwise.verify.oracle.tolerance import Evidence, judge_gradients, judge_job
from headwise.verify.target.conventions import Conventions, Runner
from headwise.verify.target.module_runner import ModuleRunner
from headwise.verify.target.runners import FunctionRunner

BACKEND = "aot_eager"
"""What compiles: all of the tracing and the gradients, and no C++ compiler."""

LENGTHS = (7, 11)
"""How long the sequences are; the second shows whether the first was taken for the only one."""


def compiled(conventions: Conventions) -> Conventions | None:
    """The same conventions of the target under `torch.compile`; None where nothing can be compiled.

    A module is copied, so that the one that was given stays as it is.
    """
    runner = _compiled(conventions.runner)
    return None if runner is None else replace(conventions, runner=runner)


def _compiled(runner: Runner) -> Runner | None:
    if isinstance(runner, ModuleRunner):
        made: Callable[[float], nn.Module] = cache(lambda p: _module(runner.make(p)))
        return replace(runner, make=made)
    if isinstance(runner, FunctionRunner) and not runner.arrays:
        return replace(runner, function=torch.compile(runner.function, backend=BACKEND))
    return None


def _module(module: nn.Module) -> nn.Module:
    copy = deepcopy(module)
    copy.compile(backend=BACKEND)
    return copy


def compiled_equals(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Outputs and gradients of the compiled target, at two lengths and under masks."""
    for length in LENGTHS:
        masks = (("no mask", full()), ("causal", causal()), ("padding", padding([length, 4])))
        for name, mask in masks:
            job = _job(subject, dtype, length)
            job = replace(job, mask=mask)
            outcome = _quietly(subject, job)
            if outcome is not None:
                yield f"L={length}, {name}", judge_job(outcome, job)
        yield from _gradients(subject, _job(subject, dtype, length).tracked())


def _quietly(subject: Subject, job: Job) -> Outcome | None:
    """What it gives, without what the compiler says of weights that were laid into the module."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        return compute(subject, job)


def _job(subject: Subject, dtype: torch.dtype, length: int) -> Job:
    size = subject.embed_dim, subject.heads
    return subject.fit(self_job(*size, length=length, mask=subject.base, dtype=dtype))


def _gradients(subject: Subject, job: Job) -> Iterator[Evidence]:
    outcome = _quietly(subject, job)
    if outcome is not None:
        plain, exact = oracle(job, job.query.dtype)["output"], oracle(job)["output"]
        judged = judge_gradients(outcome.output, plain, exact, job.leaves(), again=False)
        for leaf, verdict in judged:
            yield f"gradient of {leaf}", verdict


COMPILED = Check("compiled_equals", Text("torch.compile gives the same"), compiled_equals)
"""The check that is made where it is asked for."""
