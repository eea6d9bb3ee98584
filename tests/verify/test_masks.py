"""A target is accepted only if each mask argument masks the right keys."""

from pathlib import Path

import pytest
from torch.nn.functional import scaled_dot_product_attention

from headwise.document import Notice
from headwise.verify import verify
from headwise.verify.report import data
from headwise.verify.report.report_document import document
from headwise.verify.target import load

MASKS = Path(__file__).parent / "targets" / "masks.py"
WRONG = {
    "transposed": "mask_transposed",
    "weak": "mask_too_weak",
    "ignored": "mask_ignored",
    "PaddingIgnored": "mask_ignored",
    "LengthsIgnored": "mask_ignored",
}
UNKNOWN = {"strange": "attn_bias", "PaddingStrange": "key_padding_mask"}


def report(name: str):
    return verify(load(f"{MASKS}:{name}"), name)


def check(found, name: str):
    return next(finding for finding in found.findings if finding.check.name == name)


@pytest.mark.parametrize("name", ["attention", "added", "Two", "Lengths"])
def test_a_right_mask_is_accepted(name: str) -> None:
    found = report(name)
    assert found.accepted
    assert check(found, "mask_arguments").trials


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_mask_fails_and_is_named(name: str) -> None:
    found = report(name)
    assert not found.accepted
    assert [mistake.name for group in found.mistakes for mistake in group] == [WRONG[name]]
    assert found.step == "mask"
    assert not check(found, "mask_arguments").passed


def test_the_argument_that_hides_nothing_is_said() -> None:
    found = check(report("PaddingIgnored"), "mask_arguments")
    assert found.failed == "key_padding_mask: padding"


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_mask_that_is_not_understood_withholds_acceptance(name: str) -> None:
    found = report(name)
    assert all(finding.passed for finding in found.findings)
    assert not found.accepted
    verdict = document(data(found)).blocks[0]
    said = f"not proven: equal to the oracle without a mask, but {UNKNOWN[name]} was not understood"
    assert isinstance(verdict, Notice)
    assert not verdict.good
    assert verdict.text.en.startswith(said)
    assert "--mask-true" in verdict.text.en
    assert found.status == "unproven"
    assert data(found)["not_exercised"] == [UNKNOWN[name]]
    assert check(found, "padding_leak").trials == 0


def test_a_flag_that_does_nothing_is_said() -> None:
    found = report("added")
    said = "is_causal=True is not a causal mask: the output differs"
    assert said in [note.en for note in found.notes]
    assert data(found)["not_exercised"] == []


def test_an_argument_left_at_its_default_is_said() -> None:
    found = verify(scaled_dot_product_attention)
    assert "dropout_p: not tried, left at its default" in [note.en for note in found.notes]
    assert data(found)["not_exercised"] == ["dropout_p", "scale", "enable_gqa"]
