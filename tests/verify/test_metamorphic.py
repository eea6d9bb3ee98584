"""Checks that need no oracle, each with a target that fails only this check."""

import pytest
import torch

from headwise.verify.checks import LENGTH, Subject, masked_job, of_pipeline
from headwise.verify.checks.contract import CONTRACT
from headwise.verify.checks.metamorphic import METAMORPHIC, ORDER
from headwise.verify.checks.mutation_testing import examine
from headwise.verify.oracle.jobs import Outcome
from headwise.verify.oracle.pipeline import Pipeline

CHECK = {check.name: check for check in CONTRACT}
RIGHT = of_pipeline("right", Pipeline())


def found(name: str, module, **given):
    return examine(CHECK[name], Subject("mine", module=module, **given), torch.float32)


def changed(change):
    """The right attention with its output changed, which may look at the job."""

    def module(job) -> Outcome:
        outcome = RIGHT.module(job)
        return Outcome(change(outcome.output, job), outcome.weights)

    return module


def test_all_of_them_are_in_the_contract() -> None:
    assert set(METAMORPHIC) <= set(CONTRACT)
    assert sorted(ORDER) == list(range(LENGTH))
    assert all(place != token for place, token in enumerate(ORDER))


def test_what_hangs_on_the_call_before_is_not_deterministic() -> None:
    last = []

    def remembering(output, job):
        again = bool(last) and last[-1].shape != output.shape
        last.append(output)
        return output + 1e-3 if again else output

    assert found("deterministic", changed(remembering)).failed == "after another input"


def test_a_nan_that_stays_where_it_is_is_deterministic() -> None:
    finding = found("deterministic", changed(lambda output, _job: output * torch.nan))
    assert (finding.failed, finding.trials) == ("", 4)


def test_a_token_that_knows_its_place() -> None:
    def placed(output, job):
        return output + torch.arange(output.shape[1])[:, None]

    assert found("permutation_equivariant", changed(placed)).failed == "tokens in another order"


def test_a_sample_of_padding_that_spoils_the_others() -> None:
    def spoiled(output, job):
        blind = not bool(job.mask.dense(job.shape).any(-1).all())
        return output * torch.nan if blind else output

    assert found("blind_rows_alone", changed(spoiled)).failed == "the sample beside it"


def test_to_refuse_a_sample_of_padding_is_a_choice() -> None:
    def refusing(output, job):
        if not bool(job.mask.dense(job.shape).any(-1).all()):
            raise ValueError("no token")
        return output

    assert found("blind_rows_alone", changed(refusing)).trials == 0
    assert found("masked_gradients", changed(refusing)).passed


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        (lambda weights, _job: weights * 1.001, "no mask: sums"),
        (
            lambda weights, job: (
                weights + 1e-3 - 2e-3 * job.mask.dense(job.shape)
                if not bool(job.mask.dense(job.shape).all())
                else weights
            ),
            "causal: sums",
        ),
        (lambda weights, _job: weights.mean(-1, keepdim=True).expand_as(weights), "causal: hidden"),
    ],
)
def test_weights_that_are_none(change, failed: str) -> None:
    def module(job) -> Outcome:
        outcome = RIGHT.module(job)
        return Outcome(outcome.output, change(outcome.weights, job))

    assert found("weights_sum_to_one", module).failed.startswith(failed)
    assert found("module_forward", module).passed


def test_a_gradient_that_reaches_a_hidden_token() -> None:
    def leaking(output, job):
        whole = job.query.sum((1, 2), keepdim=True)
        return output + whole - whole.detach()

    finding = found("masked_gradients", changed(leaking))
    assert (finding.failed, finding.raised) == ("padding: hidden tokens", False)
    assert found("module_forward", changed(leaking)).passed


def test_what_gives_nan_to_a_blind_query_may_have_any_gradient() -> None:
    def module(job) -> Outcome:
        outcome = RIGHT.module(job)
        blind = ~job.mask.dense(job.shape).any(-1)[:, 0]
        return Outcome(outcome.output.masked_fill(blind[..., None], torch.nan))

    finding = found("masked_gradients", module)
    assert (finding.failed, finding.trials) == ("", 2)


def test_what_has_no_graph_has_no_gradient_to_judge() -> None:
    assert found("masked_gradients", changed(lambda output, _job: output.detach())).trials == 0


def test_without_an_oracle_a_subject_is_held_against_itself() -> None:
    """Twice the right output is wrong, and consistent with itself."""

    def truth(job, dtype):
        return 2 * RIGHT.module(job.to(dtype)).output

    double = changed(lambda output, _job: 2 * output)
    names = {"batch_independent", "causal_leak", "padding_leak", "permutation_equivariant"}
    for name in names:
        assert not found(name, double).passed
        finding = found(name, double, truth=truth)
        assert (finding.failed, finding.trials > 0) == ("", True)


def test_the_jobs_of_the_checks_have_the_sizes_asked_for() -> None:
    job = masked_job(RIGHT, torch.float64, batch=1, length=3)
    assert tuple(job.query.shape) == (1, 3, RIGHT.embed_dim)
    assert job.query.dtype == torch.float64
