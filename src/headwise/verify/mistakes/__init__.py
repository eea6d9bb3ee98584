"""The catalogue of known mistakes, and the search for those that reproduce a target's output."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor

from headwise.verify.mistakes.attention import INSIDE
from headwise.verify.mistakes.masking import MASKING
from headwise.verify.mistakes.mistake import Mistake, Replacement, combine
from headwise.verify.mistakes.projections import AROUND
from headwise.verify.mistakes.rare_inputs import EDGES
from headwise.verify.oracle.jobs import Job, Outcome
from headwise.verify.oracle.pipeline import Pipeline
from headwise.verify.oracle.tolerance import judge, judge_gradients, judge_job

MISTAKES: tuple[Mistake, ...] = (*INSIDE, *MASKING, *AROUND, *EDGES)

__all__ = ["MISTAKES", "Mistake", "combine"]


GRADIENTS = ("gradients", "masked_gradients")
"""The checks for mistakes that leave every output correct."""

FAR = 2.0**-4  # rounding changes an output by less than this fraction of its largest number


@dataclass(frozen=True, eq=False)
class Observation:
    """A job, and the outcome of the target for this job."""

    job: Job
    outcome: Outcome

    @cached_property
    def wide(self) -> Job:
        """The same job in float64."""
        return self.job.to(torch.float64)

    @cached_property
    def rows(self) -> Tensor | None:
        """The rows of the output that are not NaN; None if most rows are NaN."""
        enough = bool(2 * self.known.sum() >= self.known.numel())
        return self.outcome.output[self.known] if enough else None

    @cached_property
    def known(self) -> Tensor:
        """(B, Lq), False for NaN rows, as a target may return NaN for a fully masked query."""
        return ~self.outcome.output.isnan().any(-1)

    @cached_property
    def ordinary(self) -> tuple[Tensor | None, Tensor | None]:
        """The correct output, in the dtype of the job and in float64."""
        return _output(Pipeline(), self.job), _output(Pipeline(), self.wide)

    @cached_property
    def right(self) -> bool:
        """Whether the output of the target equals the oracle's."""
        return judge_job(self.outcome, self.job).accepted


def explain(
    observations: Sequence[Observation], mistakes: Sequence[Mistake] = MISTAKES, most: int = 2
) -> tuple[tuple[Mistake, ...], ...]:
    """Find the smallest sets of mistakes that reproduce the target in every observation.

    If no set reproduces the observations under all masks, only those under the first mask are used,
    provided that the target is wrong there. The first mask should be full attention.

    Returns:
        Sets of mistakes of the same size, at most `most`; empty if no set of known mistakes
        explains the target; several if the observations do not distinguish the sets.
    """
    first = [seen for seen in observations if seen.job.mask == observations[0].job.mask]
    masked = len(observations) > len(first) > 1 and not all(seen.right for seen in first)
    with _one_thread():
        for tried in (observations, first) if masked else (observations,):
            for size in range(1, most + 1):
                sets = tuple(s for s in _sets(tried, mistakes, size) if reproduces(s, tried))
                if sets:
                    return sets
    return ()


def _sets(
    observations: Sequence[Observation], mistakes: Sequence[Mistake], size: int
) -> Iterator[tuple[Mistake, ...]]:
    """Yield the sets of a size; sets of several mistakes contain only mistakes with an effect."""
    if size > 1:
        mistakes = [m for m in mistakes if any(_acts(m.replacement, seen) for seen in observations)]
    return combinations(mistakes, size)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread inside the ``with`` block, which is faster for small tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reproduces(mistakes: Sequence[Mistake], observations: Sequence[Observation]) -> bool:
    """Whether the pipeline with these mistakes gives the target's outputs, up to rounding.

    Wrong outputs are compared first, and small ones before large ones, since most sets fail there.
    """
    ordered = sorted(observations, key=lambda seen: (seen.right, seen.outcome.output.numel()))
    pipelines = (Pipeline().with_steps(way) for way in combine(mistakes))
    return bool(observations) and any(all(_matches(p, s) for s in ordered) for p in pipelines)


def explain_gradients(
    module: Callable[[Job], Outcome], jobs: Sequence[Job], mistakes: Sequence[Mistake] = MISTAKES
) -> tuple[tuple[Mistake, ...], ...]:
    """Find mistakes that leave outputs correct and reproduce the gradients of all jobs."""
    tracked = [job.tracked() for job in jobs]
    observations = [(job, module(job).output) for job in tracked]
    candidates = (m for m in mistakes if m.check in GRADIENTS)
    return tuple((m,) for m in candidates if _same_gradients(m, observations))


def _matches(pipeline: Pipeline, seen: Observation) -> bool:
    exact = _output(pipeline, seen.wide)
    result = seen.rows
    if exact is None or result is None or exact.shape != seen.outcome.output.shape:
        return False
    exact = exact[seen.known]
    if bool((result - exact).abs().max() > FAR * exact.abs().max()):
        return False
    plain = _output(pipeline, seen.job)
    return plain is not None and judge(result, plain[seen.known], exact).accepted


def _acts(replacement: Replacement, seen: Observation) -> bool:
    wrong, (plain, right) = _output(Pipeline().with_steps(replacement), seen.wide), seen.ordinary
    if wrong is None or right is None or plain is None:
        return wrong is None
    return not judge(wrong, plain, right).accepted


def _output(pipeline: Pipeline, job: Job) -> Tensor | None:
    """Run the pipeline; None if a mistake does not fit the shapes."""
    try:
        return pipeline.run(job)["output"].detach()
    except RuntimeError:
        return None


def _same_gradients(mistake: Mistake, observations: Sequence[tuple[Job, Tensor]]) -> bool:
    pipeline = Pipeline().with_steps(mistake.replacement)
    for job, output in observations:
        plain, exact = (
            pipeline.run(job.to(dtype))["output"] for dtype in (output.dtype, torch.float64)
        )
        trials = judge_gradients(output, plain, exact, job.leaves())
        if not all(verdict.accepted for _, verdict in trials):
            return False
    return True
