"""The catalogue of known mistakes, and the search for those that reproduce a target's output."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor

from headwise.verify.mistakes.attention import INSIDE
from headwise.verify.mistakes.masking import MASKING
from headwise.verify.mistakes.mistake import Mistake, Replacement, combine
from headwise.verify.mistakes.position_mistakes import POSITIONS
from headwise.verify.mistakes.projections import AROUND
from headwise.verify.mistakes.rare_inputs import EDGES
from headwise.verify.oracle.jobs import Job, Outcome
from headwise.verify.oracle.pipeline import QUANTITIES, Pipeline
from headwise.verify.oracle.steps import STEPS
from headwise.verify.oracle.tolerance import judge, judge_gradients, judge_job

MISTAKES: tuple[Mistake, ...] = (*INSIDE, *MASKING, *AROUND, *POSITIONS, *EDGES)

__all__ = ["MISTAKES", "Mistake", "combine"]


GRADIENTS = ("gradients", "masked_gradients", "module_gradients")
"""The checks of mistakes that leave every output correct."""

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

    def distance(self, replacement: Replacement) -> Tensor:
        """How far the output with a replacement is from the target's, in mean square."""
        exact = _output(Pipeline().with_steps(replacement), self.wide)
        if exact is None or exact.shape != self.outcome.output.shape:
            return torch.tensor(torch.inf)
        return (self.outcome.output.detach() - exact)[self.known].square().mean()

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
        if not masked:
            return _smallest(observations, mistakes, most)
        unmasked = _smallest(first, mistakes, most)
        return _with_masks(unmasked, observations, mistakes, most) or unmasked


Sets = tuple[tuple[Mistake, ...], ...]


def _smallest(observations: Sequence[Observation], mistakes: Sequence[Mistake], most: int) -> Sets:
    """The smallest sets that reproduce the target on every observation."""
    for size in range(1, most + 1):
        sets = tuple(s for s in _sets(observations, mistakes, size) if reproduces(s, observations))
        sets = sets or tuple((m,) for m in _fitted(observations, mistakes) if size == 1)
        if sets:
            return sets
    return ()


def _with_masks(
    unmasked: Sets, observations: Sequence[Observation], mistakes: Sequence[Mistake], most: int
) -> Sets:
    """The sets that reproduce the target without a mask, and with one as well.

    One of them may need another mistake, which acts under a mask only.
    """
    every = tuple(s for s in unmasked if reproduces(s, observations))
    if every or not unmasked or len(unmasked[0]) == most:
        return every
    more = [
        m for m in mistakes if m.replacement and m not in {item for s in unmasked for item in s}
    ]
    pairs = ((*s, m) for s in unmasked for m in more)
    return tuple(pair for pair in pairs if reproduces(pair, observations))


def _fitted(observations: Sequence[Observation], mistakes: Sequence[Mistake]) -> Iterator[Mistake]:
    """The mistakes with a number that fits the observations and reproduces all of them."""
    for mistake in mistakes:
        found = None if mistake.fit is None else mistake.fit(observations)
        if found is not None:
            own = replace(mistake, replacement=found.replacement, says=found.says, others=())
            if reproduces((own,), observations):
                yield own


BEFORE_MASK = ("project", "split", "score", "scale")
"""The steps on which no mask acts."""


def possible(
    mistakes: Sequence[Mistake], appeared: Collection[str], steps: Collection[str] = STEPS
) -> tuple[Mistake, ...]:
    """The mistakes that are not excluded by quantities of the oracle that appear in a target.

    The steps up to the last quantity that appears in an unbroken row are right; only `steps` are
    excluded so.
    """
    right: set[str] = set()
    for step in dict.fromkeys(step for _, step in QUANTITIES):
        if any(name not in appeared for name, own in QUANTITIES if own == step):
            break
        right.add(step)
    fused = not right & {"score"}  # then even q, k and v in another order would appear
    excluded = set() if fused else right & set(steps)
    replacing = (m for m in mistakes if m.replacement)
    return tuple(m for m in replacing if m.step not in excluded or set(m.replacement) - excluded)


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
