"""Checks of edge cases: sizes, lengths, memory layouts and dtypes, with targets that fail them."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headwise.verify import verify
from headwise.verify.checks import Subject, of_pipeline
from headwise.verify.checks.contract import CONTRACT
from headwise.verify.checks.edge_cases import DTYPES, LAYOUTS, LONG, edge_case_jobs
from headwise.verify.checks.mutation_testing import examine
from headwise.verify.oracle.jobs import Outcome, copied
from headwise.verify.oracle.pipeline import Pipeline

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
    assert list(edge_case_jobs(RIGHT, torch.float32, {"module_forward"})) == []
    (long, causal) = edge_case_jobs(RIGHT, torch.float32, {"long_sequence"})
    assert long.query.shape[1] == causal.query.shape[1] == LONG[0]


class Wrong(nn.Module):
    """A right attention, for the others to break where ordinary inputs do not show it."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h, self.d = num_heads, d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def taken(self, x):
        return x

    def hidden(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask, float("-inf"))

    def weigh(self, scores):
        return scores.softmax(-1)

    def forward(self, x, mask=None):
        x = self.taken(x)
        q, k, v = (
            f(x).unflatten(-1, (self.h, self.d)).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.transpose(-2, -1) / self.d**0.5
        weights = self.weigh(self.hidden(scores, mask))
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2))


class DropoutHardCoded(Wrong):
    def weigh(self, scores):
        return F.dropout(scores.softmax(-1), 0.2)


class AxesSqueezed(Wrong):
    def weigh(self, scores):
        return scores.squeeze().softmax(-1).view_as(scores)


class LastBlockDropped(Wrong):
    def weigh(self, scores):
        keys = scores.shape[-1]
        whole = keys // 128 * 128 or keys
        return F.pad(scores[..., :whole].softmax(-1), (0, keys - whole)).nan_to_num(0.0)


class BlocksNotRescaled(Wrong):
    def weigh(self, scores):
        if scores.shape[-1] <= 32:
            return scores.softmax(-1)
        largest, powers = torch.full_like(scores[..., :1], -1e30), []
        for part in scores.split(32, -1):
            largest = torch.maximum(largest, part.amax(-1, keepdim=True))
            powers.append((part - largest).exp())
        weights = torch.cat(powers, -1)
        return weights / weights.sum(-1, keepdim=True)


class StridesIgnored(Wrong):
    def taken(self, x):
        numbers = x.untyped_storage().nbytes() // x.element_size()
        memory = F.pad(x.as_strided((numbers,), (1,), 0), (0, x.numel()))
        return memory[: x.numel()].view(x.shape)


class NanReplaced(Wrong):
    def hidden(self, scores, mask):
        none = torch.zeros(())
        return scores if mask is None else scores + none.masked_fill(~mask, float("-inf"))

    def weigh(self, scores):
        return scores.softmax(-1).nan_to_num(0.0)


class LeftInSinglePrecision(Wrong):
    def forward(self, x, mask=None):
        return super().forward(x, mask).float()


class MaxOfAllScores(Wrong):
    def weigh(self, scores):
        powers = (scores - scores.max()).exp()
        return powers / powers.sum(-1, keepdim=True)


class SoftmaxWithoutMax(Wrong):
    def weigh(self, scores):
        powers = scores.exp()
        return powers / powers.sum(-1, keepdim=True)


class KeysAndValuesDetached(Wrong):
    def forward(self, x, mask=None):
        q, k, v = (
            f(x).unflatten(-1, (self.h, self.d)).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.detach().transpose(-2, -1) / self.d**0.5
        weights = self.weigh(self.hidden(scores, mask))
        return self.out_proj((weights @ v.detach()).transpose(1, 2).flatten(2))


class WrongAtLength(Wrong):
    """In a way that is not in the catalogue."""

    def weigh(self, scores):
        return scores.softmax(-1) * (1.1 if scores.shape[-1] > 100 else 1.0)


class ViewOfInput(Wrong):
    def taken(self, x):
        return x.view(-1).view(x.shape)


def test_the_right_one_passes() -> None:
    assert verify(Wrong).accepted


@pytest.mark.parametrize(
    "cls",
    [
        *(DropoutHardCoded, AxesSqueezed, LastBlockDropped, BlocksNotRescaled, StridesIgnored),
        *(NanReplaced, LeftInSinglePrecision, MaxOfAllScores, SoftmaxWithoutMax),
        KeysAndValuesDetached,
    ],
)
def test_what_ordinary_inputs_do_not_show_is_named(cls) -> None:
    report = verify(cls)
    name = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    assert [[mistake.name for mistake in group] for group in report.mistakes] == [[name]]
    assert not report.accepted


def test_a_wrong_number_that_no_mistake_gives_is_not_named() -> None:
    report = verify(WrongAtLength)
    assert [f.check.name for f in report.findings if not f.passed] == ["long_sequence"]
    assert report.mistakes == ()


class Limited(Wrong):
    """Made for 64 tokens, in float32 only."""

    def __init__(self, d_model, num_heads, max_len=64):
        super().__init__(d_model, num_heads)
        self.longest = max_len

    def taken(self, x):
        if x.shape[1] > self.longest or x.dtype == torch.float16:
            raise ValueError("too  long")
        return x


def test_what_it_refuses_is_a_note() -> None:
    report = verify(ViewOfInput)
    notes = " ".join(note.en for note in report.notes)
    assert report.accepted
    assert "not contiguous (length first in memory): raises RuntimeError: view size is" in notes
    report = verify(Limited)
    notes = [note.en for note in report.notes]
    assert report.accepted
    assert "a sequence of 257 tokens: raises ValueError: too long" in notes
    assert "float16: raises ValueError: too long" in notes
    (long,) = [f for f in report.findings if f.check.name == "long_sequence"]
    assert long.trials > 0


class Normalised(Wrong):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.q_norm, self.k_norm = nn.RMSNorm(self.d), nn.RMSNorm(self.d)

    def forward(self, x, mask=None):
        q, k, v = (
            f(x).unflatten(-1, (self.h, self.d)).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = self.q_norm(q) @ self.k_norm(k).transpose(-2, -1) / self.d**0.5
        weights = self.weigh(self.hidden(scores, mask))
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2))


def test_norms_of_queries_and_keys_are_said_to_be_what_may_differ() -> None:
    report = verify(Normalised, embed_dim=6, heads=3)
    assert not report.accepted
    assert report.mistakes == ()
    notes = " ".join(note.en for note in report.notes)
    assert "q_norm, k_norm: it normalises its queries or keys" in notes
