"""Which known mistake gives what a target gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from headwise.verify.budget import judge
from headwise.verify.jobs import Job
from headwise.verify.judging import gradients, judge_job
from headwise.verify.mistakes import MISTAKES, Mistake
from headwise.verify.pipeline import Pipeline
from headwise.verify.subject import Outcome


@dataclass(frozen=True, eq=False)
class Seen:
    """One job and what the target gave for it."""

    job: Job
    outcome: Outcome


def explain(
    seen: Sequence[Seen], mistakes: Sequence[Mistake] = MISTAKES
) -> tuple[tuple[Mistake, ...], ...]:
    """The sets of mistakes that reproduce the target on everything seen.

    Args:
        seen: jobs that differ in input, mask and form, with the target's outcomes.
        mistakes: the candidates.

    Returns:
        Sets of mistakes, each as a tuple; none where nothing known explains the target. More than
        one cannot be told apart by what was seen. Where nothing explains every mask, what explains
        the target under the first mask alone, which should be none.
    """
    bare = [each for each in seen if each.job.mask == seen[0].job.mask]
    for tried in (seen, bare) if len(bare) > 1 and _differs(bare) else (seen,):
        found = tuple((mistake,) for mistake in mistakes if reproduces((mistake,), tried))
        if found:
            return found
    return ()


def _differs(seen: Sequence[Seen]) -> bool:
    return any(not judge_job(each.outcome, each.job).accepted for each in seen)


def reproduces(mistakes: Sequence[Mistake], seen: Sequence[Seen]) -> bool:
    """Whether a run with these mistakes gives the target's outputs, to rounding."""
    ways = product(*((m.replacement, *m.others) for m in mistakes))
    pipelines = (_having(replacements) for replacements in ways)
    return bool(seen) and any(all(_matches(p, each) for each in seen) for p in pipelines)


def explain_gradients(
    module: Callable[[Job], Outcome], job: Job, mistakes: Sequence[Mistake] = MISTAKES
) -> tuple[tuple[Mistake, ...], ...]:
    """The mistakes that leave the output right and reproduce the target's gradients."""
    job = job.tracked()
    found = gradients(module(job).output, job.leaves())
    candidates = (m for m in mistakes if m.check == "gradients")
    return tuple((m,) for m in candidates if _same_gradients(_having((m.replacement,)), job, found))


def _having(replacements: Sequence[Mapping[str, Callable[..., Any]]]) -> Pipeline:
    pipeline = Pipeline()
    for replacement in replacements:
        pipeline = pipeline.having(replacement)
    return pipeline


def _matches(pipeline: Pipeline, seen: Seen) -> bool:
    try:
        plain, exact = pipeline.run(seen.job), pipeline.run(seen.job.to(torch.float64))
    except RuntimeError:  # a mistake may not fit every shape, such as a batch read as a length
        return False
    output = seen.outcome.output
    known = ~output.isnan().any(-1)  # a blind row may be NaN there and 0 here
    if 2 * known.sum() < known.numel():
        return False
    return judge(output[known], plain["output"][known], exact["output"][known]).accepted


def _same_gradients(pipeline: Pipeline, job: Job, found: dict[str, Tensor]) -> bool:
    wide = replace(job.to(torch.float64)).tracked()
    plain = gradients(pipeline.run(job)["output"], job.leaves())
    exact = gradients(pipeline.run(wide)["output"], wide.leaves())
    return all(judge(found[name], plain[name], exact[name]).accepted for name in found)
