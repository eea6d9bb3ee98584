"""Minimise the input on which a target fails, as source to paste and run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.masks import Mask, causal, full, padding
from headwise.verify.checks.mutation_testing import CheckResult
from headwise.verify.diagnosis.snippet import GRADIENT, differentiable, gradient, snippet
from headwise.verify.oracle import oracle
from headwise.verify.oracle.jobs import Job, Outcome, self_job
from headwise.verify.oracle.tolerance import judge, judge_job
from headwise.verify.target.conventions import Conventions, Runner
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
"""Masks that fit any batch and length, by the word for them in the name of a trial."""

UNSHOWN = (*("large_scores", "long_sequence", "non_contiguous", "dtype_kept"), "inputs_unchanged")
"""Checks that fail in what a small output in float32 does not show."""

OF_WEIGHTS = ("module_weights", "weights_sum_to_one")
"""Checks of what is returned beside the output."""

OF_GRADIENTS = ("module_gradients", "masked_gradients")
"""Checks of gradients, which are shown where that of the input is wrong."""

OUTPUT, WEIGHTS = "output", "weights"


@dataclass(frozen=True, eq=False)
class FailureQuery:
    """A kind of failure: of the output, the weights or the input's gradient, under a mask.

    Attributes:
        what: which of the three.
        mask: makes the mask for a batch and a length.
    """

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
        if self.what == OUTPUT:
            return not judge_job(outcome, job).accepted
        if self.what == GRADIENT:
            return _bends_wrongly(conventions, job, outcome)
        if outcome.weights is None:
            return False
        plain, exact = oracle(job, job.query.dtype)["weights"], oracle(job)["weights"]
        return not judge(outcome.weights, plain, exact).accepted


def _bends_wrongly(conventions: Conventions, job: Job, outcome: Outcome) -> bool:
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
        name: how it was asked for.
        conventions: how it is called.
        findings: every check.
    """
    known: dict[tuple[str, str], str | None] = {}
    result: dict[str, str] = {}
    for finding in findings:
        if finding.passed or finding.raised or finding.check.name in UNSHOWN:
            continue
        what = _what(finding)
        for word, mask in _masks(finding):
            if (what, word) not in known:
                known[what, word] = _shown(target, name, conventions, FailureQuery(what, mask))
            code = known[what, word]
            if code is not None:
                result[finding.check.name] = code
                break
    return result


def _what(finding: CheckResult) -> str:
    name = finding.check.name
    return GRADIENT if name in OF_GRADIENTS else WEIGHTS if name in OF_WEIGHTS else OUTPUT


def _masks(finding: CheckResult) -> Iterator[tuple[str, Callable[[int, int], Mask]]]:
    """The mask that the failed trial names, else every mask."""
    words = f"{finding.check.name} {finding.failed}"
    named = [(word, mask) for word, mask in MASKS if word and word in words]
    yield from named or MASKS


def _shown(
    target: object, name: str, conventions: Conventions, question: FailureQuery
) -> str | None:
    for sized, job in _jobs(target, name, conventions, question):
        if question.fails(sized, job):
            return snippet(sized, _simplified(sized, job, question), name, question.what)
    return None


def _jobs(
    target: object, name: str, conventions: Conventions, question: FailureQuery
) -> Iterator[tuple[Conventions, Job]]:
    """Jobs from small to large, each with the target constructed for its size."""
    fixed = isinstance(target, torch.nn.Module)
    for embed_dim, heads in (conventions.size,) if fixed else (*SIZES, conventions.size):
        instance = _made(target, name, conventions, (embed_dim, heads))
        if instance is None:
            continue
        sized = replace(conventions, runner=instance, size=(embed_dim, heads))
        for length in range(1, LONGEST + 1):
            for batch in range(1, LARGEST_BATCH + 1):
                mask = question.mask(batch, length) & conventions.base
                job = self_job(embed_dim, heads, batch=batch, length=length, mask=mask)
                yield sized, job.fitted(instance.lacks, instance.groups)


def _made(
    target: object, name: str, conventions: Conventions, size: tuple[int, int]
) -> Runner | None:
    """The target for a size; None where it cannot be that small."""
    try:
        instance = runner(target, name, *size, conventions.runner.log)
        return instance.variants[conventions.variant]
    except Exception:
        return None


def _simplified(conventions: Conventions, job: Job, question: FailureQuery) -> Job:
    """The job with every tensor simplified as far as it still fails: 0, identity, few digits."""
    for name, tensor in job.weights.named().items():
        for simple in _simpler(tensor, _removable(conventions, name)):
            weights = replace(job.weights, **{name: simple})
            if question.fails(conventions, replace(job, weights=weights)):
                job = replace(job, weights=weights)
                break
    for x in _simpler(job.query, may_vanish=True):
        tried = replace(job, query=x, key=x, value=x)
        if question.fails(conventions, tried):
            return tried
    return job


def _removable(conventions: Conventions, name: str) -> bool:
    """Whether a weight may become 0 and the example stays instructive."""
    return name.endswith("_bias") or isinstance(conventions.runner, ModuleRunner)


def _simpler(tensor: Tensor, may_vanish: bool) -> Iterator[Tensor]:
    if may_vanish:
        yield torch.zeros_like(tensor)
    if tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1]:
        yield torch.eye(tensor.shape[0], dtype=tensor.dtype)
    for parts in (1, 4, 64):
        yield (tensor * parts).round() / parts + 0.0  # -0 is 0
