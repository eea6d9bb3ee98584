"""Targets whose weights are not found: their report, and the checks that can fail."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional as F

from headwise.document import Code, Paragraph
from headwise.verify import assert_attention, verify
from headwise.verify.checks import Subject, masked_job
from headwise.verify.checks.contract import BLACK_BOX, CONTRACT
from headwise.verify.report import data
from headwise.verify.report.formats import junit
from headwise.verify.report.report_document import document, verdict
from headwise.verify.target import EXAMPLE, NotRecognised
from headwise.verify.target.runners import _given

HIDDEN = -torch.inf


class Right(nn.Module):
    """Its queries come from a small network: no weight of it is W^Q."""

    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.heads, self.p = num_heads, dropout
        first, last = nn.Linear(d_model, 2 * d_model), nn.Linear(2 * d_model, d_model)
        self.alpha = nn.Sequential(first, nn.GELU(), last)
        self.beta = nn.Linear(d_model, d_model)
        self.gamma = nn.Linear(d_model, d_model)
        self.delta = nn.Linear(d_model, d_model)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def weigh(self, scores, mask):
        return F.dropout(self.hide(scores, mask).softmax(-1), self.p, self.training)

    def hide(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask, HIDDEN)

    def attend(self, x, mask):
        q, k, v = (self.split(project(x)) for project in (self.alpha, self.beta, self.gamma))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return self.delta((self.weigh(scores, mask) @ v).transpose(1, 2).flatten(2))

    def forward(self, x, mask=None):
        return self.attend(x, mask)


class Causal(Right):
    def forward(self, x):
        return self.attend(x, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril())


class LengthFirst(Right):
    def forward(self, x, mask=None):
        return self.attend(x.transpose(0, 1), mask).transpose(0, 1)


class SingleOnly(Right):
    def forward(self, x, mask=None):
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return self.attend(x, mask)


class Unscaled(Right):
    """Wrong, and nothing that does not know its weights can tell."""

    def weigh(self, scores, mask):
        return (3 * self.hide(scores, mask)).softmax(-1)


class TimeMixed(Right):
    def split(self, x):
        return x.reshape(x.shape[0], self.heads, x.shape[1], -1)


class AcrossBatch(Right):
    def forward(self, x, mask=None):
        y = self.attend(x, mask)
        return y + 1e-3 * y.mean(0, keepdim=True)


class Leaking(Right):
    """What it gives hangs on no hidden token, and its gradient does."""

    def forward(self, x, mask=None):
        whole = 0.01 * x.sum((1, 2), keepdim=True)
        return self.attend(x, mask) + whole - whole.detach()


class Dropping(Right):
    def weigh(self, scores, mask):
        return F.dropout(self.hide(scores, mask).softmax(-1), self.p)


class AlwaysDropping(Right):
    def weigh(self, scores, mask):
        return F.dropout(self.hide(scores, mask).softmax(-1), 0.1)


class Squeezed(Right):
    def weigh(self, scores, mask):
        return self.hide(scores, mask).squeeze().softmax(-1).view_as(scores)


class InBlocks(Right):
    def weigh(self, scores, mask):
        keys = scores.shape[-1]
        whole = keys // 64 * 64 or keys
        weights = self.hide(scores, mask)[..., :whole].softmax(-1)
        return F.pad(weights, (0, keys - whole))


class Widening(Right):
    def forward(self, x, mask=None):
        return self.attend(x, mask).float()


class InPlace(Right):
    def forward(self, x, mask=None):
        return self.attend(x.mul_(1.0), mask)


class Weighty(Right):
    def forward(self, x, mask=None):
        y = self.attend(x, mask)
        return y, torch.full((x.shape[0], self.heads, x.shape[1], x.shape[1]), 0.5)


def failures(report):
    return [f.check.name for f in report.findings if not f.passed]


@pytest.mark.parametrize("cls", [Right, Causal, LengthFirst, SingleOnly, Unscaled])
def test_what_is_consistent_with_itself_is_unproven(cls) -> None:
    report = verify(cls)
    assert failures(report) == []
    assert (report.status, report.accepted) == ("unproven", False)
    tried = {finding.check.name for finding in report.findings if finding.trials}
    assert {"batch_independent", "deterministic", "smallest_sizes", "long_sequence"} <= tried
    assert ("permutation_equivariant" in tried) is (cls is not Causal)


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (TimeMixed, "permutation_equivariant"),
        (AcrossBatch, "batch_independent"),
        (Leaking, "masked_gradients"),
        (Dropping, "eval_without_dropout"),
        (AlwaysDropping, "deterministic"),
        (Squeezed, "smallest_sizes"),
        (InBlocks, "long_sequence"),
        (Widening, "dtype_kept"),
        (InPlace, "inputs_unchanged"),
        (Weighty, "weights_sum_to_one"),
    ],
)
def test_what_is_not_consistent_with_itself_differs(cls, check: str) -> None:
    report = verify(cls)
    assert check in failures(report)
    assert report.status == "differs"
    assert report.mistakes == ()


def test_an_instance_runs_with_its_own_weights() -> None:
    assert verify(Right(15, 3)).status == "unproven"
    assert verify(TimeMixed(15, 3)).status == "differs"


class Pointwise(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.linear(x)


def test_what_lets_no_token_see_another_is_no_attention() -> None:
    with pytest.raises(NotRecognised, match="no parameter is recognised as k, q, v"):
        verify(Pointwise)


def test_a_mask_that_hides_nothing_is_said_not_to_be_understood() -> None:
    class Weak(Right):
        def hide(self, scores, mask):
            return scores if mask is None else scores.masked_fill(~mask, -8.0)

    report = data(verify(Weak))
    assert (report["status"], report["not_understood"]) == ("unproven", ["mask"])
    assert "and mask was not understood" in verdict(report).en
    assert "未能理解 mask" in verdict(report).zh


def test_the_report_says_why_and_what_to_write() -> None:
    report = data(verify(Right))
    assert report["not_compared"]["en"].startswith("target: no parameter is recognised as k, q, v")
    assert EXAMPLE not in report["not_compared"]["zh"]
    assert verdict(report).en.startswith("not proven: no check fails, in ")
    assert verdict(report).zh.startswith("未能证明：")
    blocks = document(report).blocks
    assert Code(EXAMPLE) in blocks
    said = " ".join(block.text.en for block in blocks if isinstance(block, Paragraph))
    assert "Its numbers were not compared with the exact ones" in said
    assert "known mistakes, alone or in pairs" not in said
    assert "the float64 oracle" not in said


def test_ci_is_not_told_that_it_passed() -> None:
    (suite,) = ElementTree.fromstring(junit([data(verify(Right))]))  # noqa: S314 (it is ours)
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    with pytest.raises(AssertionError, match="not proven: no check fails"):
        assert_attention(Right)


def test_the_exit_status_is_that_of_no_verdict(tmp_path: Path) -> None:
    from headwise.cli.verify import command

    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Mine(nn.TransformerDecoderLayer):\n"
        "    def __init__(self, d_model, num_heads):\n"
        "        super().__init__(d_model, num_heads, 7, batch_first=True)\n"
    )
    words = [f"{tmp_path / 'mine.py'}:Mine", "--format", "json"]
    done = CliRunner().invoke(command("en"), words, standalone_mode=False)
    assert done.return_value == 2, done.output
    assert '"status": "unproven"' in done.output


def test_every_check_of_it_is_one_of_the_contract() -> None:
    names = [check.name for check in BLACK_BOX]
    assert len(set(names)) == len(names)
    assert set(names) < {check.name for check in CONTRACT}


def test_what_it_does_not_offer_cannot_be_its_truth() -> None:
    nothing = Subject("nothing")
    with pytest.raises(ValueError, match="nothing: it does not offer what it is to be held"):
        _given(nothing, masked_job(nothing, torch.float32))
