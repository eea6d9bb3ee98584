"""Minimise the input on which a target fails, as source to paste and run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from headwise.masks import Mask, causal, full, padding
from headwise.verify.checks.mutation_testing import CheckResult
from headwise.verify.diagnosis.snippet import GRADIENT, differentiable, gradient, snippet
from headwise.verify.oracle import oracle
from headwise.verify.oracle.jobs import Job, Outcome, self_job
from headwise.verify.oracle.tolerance import judge
from headwise.verify.target.conventions import Conventions
from headwise.verify.target.module_runner import ModuleRunner
from headwise.verify.target.runners import runner

SIZES = ((1, 1), (2, 1), (2, 2), (4, 2), (6, 2), (6, 3))
"""E and H, the small ones first."""

LONGEST, LARGEST_BATCH = 7, 2

MASKS: tuple[tuple[str, Callable[[int, int], Mask]], ...] = (
    ("", lambda _b, _n: full()),
    ("causal", lambda _b, _n: causal()),
    ("padding", lambda b, n: padding([n] * (b - 1) + [max(n - 1, 1)])),
    ("nothing", lambda b, n: padding([n] * (b - 1) + [0])),
)
"""Masks that fit any batch and length, by their word in the name of a trial."""

UNSHOWN = (*("large_scores", "long_sequence", "non_contiguous", "dtype_kept"), "inputs_unchanged")
"""Checks whose failure a small output in float32 does not show."""

OUTPUT, WEIGHTS = "output", "weights"

QUANTITIES = {
    "module_weights": WEIGHTS,
    "weights_sum_to_one": WEIGHTS,
    "module_gradients": GRADIENT,
    "masked_gradients": GRADIENT,
}
"""What is wrong where a check fails, if it is not the output; a gradient is that of the input."""


@dataclass(frozen=True, eq=False)
class FailureQuery:
    """A kind of failure: of the output, the weights or the input's gradient, under a mask."""

    what: str
    mask: Callable[[int, int], Mask]

    def fails(self, conventions: Conventions, job: Job) -> bool:
        """Whether the target differs from the oracle; False where it raises."""
        job = job.tracked() if self.what == GRADIENT else job
        try:
            masks = conventions.masks(job)
            outcome = None if masks is None else conventions.runner.run(job, masks)
        except Exception:
            return False
        if outcome is None:
            return False
        if self.what == GRADIENT:
            return _wrong_gradient(conventions, job, outcome)
        result = outcome.output if self.what == OUTPUT else outcome.weights
        if result is None:
            return False
        plain, exact = oracle(job, job.query.dtype)[self.what], oracle(job)[self.what]
        return not judge(result, plain, exact).accepted


def _wrong_gradient(conventions: Conventions, job: Job, outcome: Outcome) -> bool:
    """Whether the input's gradient is wrong, where a snippet can compute it."""
    if not differentiable(conventions.runner) or not outcome.output.requires_grad:
        return False
    result = gradient(outcome.output, job.query)
    plain, exact = (
        gradient(oracle(job, dtype)["output"], job.query)
        for dtype in (job.query.dtype, torch.float64)
    )
    return not judge(result, plain, exact.double()).accepted


def minimise(
    target: object, name: str, conventions: Conventions, findings: Sequence[CheckResult]
) -> dict[str, str]:
    """For each failing check, by name, source of a minimal failing input.

    Args:
        target: what was verified.
        name: the target, as on the command line.
        conventions: how it is called.
        findings: every check.
    """
    sizes = (*SIZES, conventions.size)
    if isinstance(target, torch.nn.Module):
        sizes = (conventions.size,)

    instance = cache(partial(_sized, target, name, conventions))

    @cache
    def shown(what: str, word: str) -> str | None:
        query = FailureQuery(what, dict(MASKS)[word])
        for sized in filter(None, map(instance, sizes)):
            for job in _jobs(sized, query):
                if query.fails(sized, job):
                    return snippet(sized, _simplified(sized, job, query), name, what)
        return None

    result: dict[str, str] = {}
    for finding in findings:
        if finding.passed or finding.raised or finding.check.name in UNSHOWN:
            continue
        what = QUANTITIES.get(finding.check.name, OUTPUT)
        code = next(filter(None, (shown(what, word) for word in _masks(finding))), None)
        if code is not None:
            result[finding.check.name] = code
    return result


def _masks(finding: CheckResult) -> list[str]:
    """The masks that the failed trial names, else every mask."""
    words = f"{finding.check.name} {finding.failed}"
    return [word for word, _ in MASKS if word and word in words] or [word for word, _ in MASKS]


def _sized(
    target: object, name: str, conventions: Conventions, size: tuple[int, int]
) -> Conventions | None:
    """The target constructed for a size; None where it cannot be that small."""
    try:
        own = runner(target, name, *size, conventions.runner.log)
        return replace(conventions, runner=own.variants[conventions.variant], size=size)
    except Exception:
        return None


def _jobs(conventions: Conventions, query: FailureQuery) -> Iterator[Job]:
    """Jobs of the target's size, from short to long."""
    for length in range(1, LONGEST + 1):
        for batch in range(1, LARGEST_BATCH + 1):
            mask = query.mask(batch, length) & conventions.base
            job = self_job(*conventions.size, batch=batch, length=length, mask=mask)
            yield job.fitted(conventions.runner.lacks, conventions.runner.groups)


def _simplified(conventions: Conventions, job: Job, query: FailureQuery) -> Job:
    """The job with every tensor simplified as far as it still fails: 0, identity, few digits."""
    for name, tensor in job.weights.named().items():
        may_vanish = name.endswith("_bias") or isinstance(conventions.runner, ModuleRunner)
        for simple in _simpler(tensor, may_vanish):
            weights = replace(job.weights, **{name: simple})
            if query.fails(conventions, replace(job, weights=weights)):
                job = replace(job, weights=weights)
                break
    simpler = (job.with_input(x) for x in _simpler(job.query, may_vanish=True))
    return next((tried for tried in simpler if query.fails(conventions, tried)), job)


def _simpler(tensor: Tensor, may_vanish: bool) -> Iterator[Tensor]:
    if may_vanish:
        yield torch.zeros_like(tensor)
    if tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1]:
        yield torch.eye(tensor.shape[0], dtype=tensor.dtype)
    for parts in (1, 4, 64):
        yield (tensor * parts).round() / parts + 0.0  # -0 is 0
