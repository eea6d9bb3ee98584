"""The pipeline without a mistake computes multi-head attention."""

import pytest
import torch

from headwise.masks import causal, full, padding
from headwise.reference import reference
from headwise.verify.checks.engine_cases import CASES, Case
from headwise.verify.oracle import oracle
from headwise.verify.oracle.jobs import Job, Weights, cross_job, self_job
from headwise.verify.oracle.pipeline import QUANTITIES, Pipeline
from headwise.verify.oracle.steps import STEPS
from headwise.verify.oracle.tolerance import accept


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.position is None], ids=lambda case: case.name
)
def test_attend_equals_the_reference(case: Case) -> None:
    call = case.call(torch.float32, need=("weights", "logsumexp"))
    result, plain, exact = Pipeline().attend(call), reference(call, torch.float32), reference(call)
    accept(result.output, plain.output, exact.output)
    accept(result.weights, plain.weights, exact.weights)
    accept(result.logsumexp, plain.logsumexp, exact.logsumexp)


@pytest.mark.parametrize("mask", [full(), causal(), padding([5, 0])], ids=repr)
@pytest.mark.parametrize("make", [self_job, cross_job])
def test_every_quantity_of_a_run_equals_the_oracle(make, mask) -> None:
    job = make(15, 3, mask=mask)
    trace, plain, exact = Pipeline().run(job), oracle(job, torch.float32), oracle(job)
    assert list(trace) == [name for name, _ in QUANTITIES]
    hidden = ("k_heads", "v_heads", "scores")  # the pipeline traces k and v as the split made them
    for name in trace:
        if name not in hidden or mask == full():
            accept(trace[name], plain[name], exact[name])


def test_every_quantity_stands_at_a_step() -> None:
    assert {step for _, step in QUANTITIES} <= set(STEPS)


@pytest.mark.parametrize("mask", [full(), causal()], ids=repr)
def test_run_equals_torch(mask) -> None:
    job = self_job(15, 3, mask=mask)
    w = job.weights
    theirs = torch.nn.MultiheadAttention(15, 3, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat((w.q, w.k, w.v)))
        theirs.in_proj_bias.copy_(torch.cat((w.q_bias, w.k_bias, w.v_bias)))
        theirs.out_proj.weight.copy_(w.out)
        theirs.out_proj.bias.copy_(w.out_bias)
    blocked = None if mask is None else torch.ones(7, 7).triu(1).bool()
    output, weights = theirs(
        job.query, job.key, job.value, attn_mask=blocked, average_attn_weights=False
    )
    trace, exact = Pipeline().run(job), oracle(job)
    accept(trace["output"], output, exact["output"])
    accept(trace["weights"], weights, exact["weights"])


def test_head_dim_and_groups_are_free() -> None:
    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw)

    heads, groups, dim, value_dim, embed_dim = 6, 3, 5, 7, 11
    weights = Weights(
        random(heads * dim, embed_dim),
        random(groups * dim, embed_dim),
        random(groups * value_dim, embed_dim),
        random(embed_dim, heads * value_dim),
    )
    x = random(2, 13, embed_dim)
    job = Job(x, x, x, weights, heads, groups, causal())
    trace, plain, exact = Pipeline().run(job), oracle(job, torch.float32), oracle(job)
    accept(trace["output"], plain["output"], exact["output"])
    assert trace["output"].shape == (2, 13, embed_dim)


def test_dropout_acts_in_training_only() -> None:
    from dataclasses import replace

    job = replace(self_job(15, 3), dropout=0.5)
    assert torch.equal(Pipeline().run(job)["output"], Pipeline().run(job)["output"])
    job = replace(job, training=True)
    again, otherwise = (Pipeline().run(replace(job, rng_seed=n))["output"] for n in (0, 1))
    assert torch.equal(Pipeline().run(job)["output"], again)
    assert not torch.equal(again, otherwise)
