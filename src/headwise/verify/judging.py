"""How the checks hold outputs, weights and gradients against the oracle."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.reference import Steps, reference
from headwise.verify.budget import Verdict, judge
from headwise.verify.jobs import Job
from headwise.verify.oracle import oracle
from headwise.verify.subject import Evidence, Outcome


def judge_output(result: Result, call: Call) -> Verdict:
    """The output by the one rule."""
    return judge(result.output, reference(call, call.q.dtype).output, reference(call).output)


def judge_job(outcome: Outcome, job: Job) -> Verdict:
    """A module's output by the one rule."""
    plain, exact = oracle(job, job.query.dtype), oracle(job)
    return judge(outcome.output, plain["output"], exact["output"])


def gradients(
    output: Tensor, leaves: Mapping[str, Tensor], *, again: bool = True
) -> dict[str, Tensor]:
    """The gradient of a fixed weighted sum of the output; 0 where a leaf has no influence.

    Args:
        output: what hangs on the leaves.
        leaves: what a gradient is wanted for, by name.
        again: whether it may be asked for again, as where one output is held against many
            candidates; what `torch.compile` has made may not.
    """
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    if not output.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(
        output,
        list(leaves.values()),
        cotangent.to(output.dtype),
        allow_unused=True,
        retain_graph=again,
    )
    return {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }


def judge_gradients(
    output: Tensor,
    plain: Tensor,
    exact: Tensor,
    leaves: Mapping[str, Tensor],
    *,
    again: bool = True,
) -> Iterator[Evidence]:
    """Every gradient by the one rule; all three outputs hang on the same leaves.

    The gradient of the oracle is rounded to the leaf's dtype on its way, which the bound's share
    of the dtype covers. A gradient that is exactly 0, such as the one of a key's bias, is noise in
    every finite precision; it is judged on the scale of the largest gradient.
    """
    found = gradients(output, leaves, again=again)
    rough, right = (gradients(each, leaves) for each in (plain, exact))
    largest = max((g.abs().max() for g in right.values() if g.numel()), default=torch.zeros(()))
    for name, gradient in found.items():
        anchor = largest.reshape(1).to(gradient.dtype)
        x, n, o = (
            torch.cat((g.flatten(), anchor)) for g in (gradient, rough[name], right[name].double())
        )
        yield name, judge(x, n, o.double())


def steps_of(call: Call) -> tuple[Steps, Steps]:
    """The call in its own dtype, and in float64."""
    return reference(call, call.q.dtype), reference(call)
