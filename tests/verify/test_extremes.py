"""Checks at the edges: sizes, lengths, memory and dtypes, each on a target that it rejects."""

import pytest
import torch

from headwise.verify.contract import CONTRACT
from headwise.verify.extremes import DTYPES, LAYOUTS, LONG, edges
from headwise.verify.gate import examine
from headwise.verify.jobs import copied
from headwise.verify.pipeline import Pipeline
from headwise.verify.subject import Outcome, Subject, of_pipeline

CHECK = {check.name: check for check in CONTRACT}
RIGHT = of_pipeline("right", Pipeline())


def found(name: str, change):
    def module(job) -> Outcome:
        return Outcome(change(RIGHT.module(job).output, job))

    return examine(CHECK[name], Subject("mine", module=module), torch.float32)


def test_a_length_that_raises_is_not_tried_and_a_shorter_one_is() -> None:
    def limited(output, job):
        if job.query.shape[1] > LONG[-1]:
            raise IndexError("too long")
        return output * (1 + (job.query.shape[1] > 32))

    assert found("long_sequence", limited).failed == f"L = {LONG[-1]}"


def test_what_raises_at_every_length_is_not_tried() -> None:
    def refusing(output, job):
        if job.query.shape[1] > 7:
            raise IndexError("too long")
        return output

    finding = found("long_sequence", refusing)
    assert (finding.trials, finding.passed) == (0, True)


@pytest.mark.parametrize(
    ("wrong", "failed"),
    [
        (lambda job: job.query.shape[1] == 1 != job.query.shape[0], "L = 1"),
        (lambda job: job.query.shape[0] == 1 != job.query.shape[1], "B = 1"),
        (lambda job: job.key.shape[1] != job.query.shape[1] == 1, "Lq = 1, Lk = 7"),
    ],
)
def test_what_is_wrong_at_a_size_of_one(wrong, failed: str) -> None:
    assert found("smallest_sizes", lambda y, job: y + 1 if wrong(job) else y).failed == failed


@pytest.mark.parametrize(("name", "change"), LAYOUTS, ids=[name for name, _ in LAYOUTS])
def test_what_is_wrong_for_one_layout(name: str, change) -> None:
    strides = change(torch.zeros(2, 7, 15)).stride()
    finding = found("non_contiguous", lambda y, job: y + (job.query.stride() == strides))
    assert finding.failed == name


def test_a_copy_lies_in_memory_as_the_tensor_does() -> None:
    x = torch.arange(210.0).reshape(2, 7, 15)
    for _, change in LAYOUTS:
        laid = change(x)[:, 1:]
        for dtype in (None, torch.float64):
            copy = copied(laid, dtype)
            assert (copy.stride(), copy.storage_offset()) == (laid.stride(), laid.storage_offset())
            assert torch.equal(copy.float(), laid)
            assert copy.dtype == (dtype or x.dtype)
        copied(laid)[0].add_(1.0)
    assert torch.equal(x, torch.arange(210.0).reshape(2, 7, 15))


def test_a_copy_of_a_leaf_keeps_its_graph() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    copied(x.T, torch.float64).sum().backward()
    assert torch.equal(x.grad, torch.ones(2, 3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_output_of_another_dtype(dtype: torch.dtype) -> None:
    def widened(output, job):
        return output.float() if job.query.dtype == dtype else output

    assert found("dtype_kept", widened).failed == f"{str(dtype)[6:]} gives float32"


def test_half_precision_that_is_not_even_that() -> None:
    def rough(output, job):
        return output * 1.2 if job.query.dtype == torch.float16 else output

    assert found("dtype_kept", rough).failed == "float16: output"


def test_a_dtype_that_raises_is_not_tried() -> None:
    def picky(output, job):
        if job.query.dtype != torch.float32:
            raise TypeError("float32 only")
        return output

    finding = found("dtype_kept", picky)
    assert (finding.trials, finding.passed) == (1, True)


def test_the_jobs_of_the_checks_that_failed() -> None:
    assert list(edges(RIGHT, torch.float32, {"module_forward"})) == []
    (long, causal) = edges(RIGHT, torch.float32, {"long_sequence"})
    assert long.query.shape[1] == causal.query.shape[1] == LONG[0]
