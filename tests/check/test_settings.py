"""Each part of an article has its own mask and scale; a mistake is named once."""

import pytest
import torch

from headwise.check import check
from headwise.check.checker import is_clean, verdict
from headwise.check.settings.choices import (
    MASK_OFF,
    MASK_ON,
    SCALE_OFF,
    SCALE_ON,
    Choices,
    mentions,
)
from headwise.check.settings.parts import part_at, read_parts

X = torch.tensor([[1.0, 2.0], [0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
SCORES = X @ X.T
SCALED = SCORES / 2**0.5
WEIGHTS, UNSCALED = SCALED.softmax(-1), SCORES.softmax(-1)
KEEP = torch.ones(3, 3, dtype=torch.bool).tril()
CAUSAL = SCALED.masked_fill(~KEEP, -float("inf")).softmax(-1)
BARE = "One head, identity projections.\n\nX = [[1, 2], [0, 1], [2, 0]]\n\n"
GIVEN = BARE.replace("projections.", "projections, d_k = 2.")


def show(matrix, places=3):
    rows = (", ".join(f"{value:.{places}f}" for value in row) for row in matrix.tolist())
    return "[" + ", ".join(f"[{row}]" for row in rows) + "]"


RIGHT = {
    "a causal part": f"# Causal attention\n\n{GIVEN}Weights:\n\n{show(CAUSAL)}",
    "the step before the mask": f"# Causal attention\n\n{GIVEN}Attention weights: {show(WEIGHTS)}"
    f"\n\nZero the future and normalise.\n\nMasked attention weights: {show(CAUSAL)}\n",
    "three variants": f"# One\n{GIVEN}weights = {show(WEIGHTS)}\n\n## Now with a causal mask\n\n"
    f"weights = {show(CAUSAL)}\n\n## Without the scale\n\nweights = {show(UNSCALED)}\n",
    "an exercise and its solution": f"{GIVEN}**Exercise 1.** Apply a causal mask.\n\n"
    f"**Solution.** weights = {show(CAUSAL)}\n",
    "q = k = v": f"Q = K = V = [[1, 2], [0, 1], [2, 0]]\n\nscores = {show(SCORES, 0)}\n\n"
    f"softmax(scores / √2) = {show(WEIGHTS)}\n\noutput = {show(WEIGHTS @ X)}",
    "row comments": "Q = K = V = [\n  [1, 2],   # the\n  [0, 1],   # cat\n  [2, 0],   # sat\n]\n\n"
    f"scores:\n{show(SCORES, 0)}\n\nsoftmax of the scaled scores: {show(WEIGHTS)}\n",
    "E": f"We embed: E = [[1, 2], [0, 1], [2, 0]]. No projections.\n\nS = E Eᵀ = {show(SCORES, 0)}"
    f"\n\nA = softmax(S/√2) = {show(WEIGHTS)}\n\nA E = {show(WEIGHTS @ X)}",
    "Z_in": f"Z_in = [[1, 2], [0, 1], [2, 0]], identity.\n\nA = softmax(S/√2) = {show(WEIGHTS)}\n\n"
    f"Z_out = {show(WEIGHTS @ X)}",
    "a printed mask": f"{GIVEN}The causal mask:\n\n[[1, 0, 0], [1, 1, 0], [1, 1, 1]]\n\n"
    f"weights = {show(CAUSAL)}",
    "other layers": f"{GIVEN}A = {show(WEIGHTS)}\n\nResidual: X + AV = {show(X + WEIGHTS @ X)}\n\n"
    "## Layer norm\n\nLN output = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.7]]\n\n## Feed-forward\n\n"
    "output = [[0.5, 0.25], [0.1, 0.9], [0.3, 0.3]]\n",
    "a supposition": f"{GIVEN}A = {show(WEIGHTS)}\n\nIf Q[0] were [5, 5], the weights would be "
    "[0.111, 0.222, 0.667].\n",
    "numbers of the text": "BERT base has 12 heads. Version 1.2.3 of 2024-03-01, section 4.2.\n\n"
    f"{GIVEN}A = {show(WEIGHTS)}\n\nThe GPU has 24.5 GB.",
    "the row maximum": f"{GIVEN}S/√2 = {show(SCALED)}\n\nSubtract the row maximum: "
    f"{show(SCALED - SCALED.amax(-1, keepdim=True))}\n\nA = {show(WEIGHTS)}",
    "no scale, by the formula": f"{BARE}scores = X X^T = {show(SCORES, 0)}\n\n"
    f"weights = softmax(scores) = {show(UNSCALED)}\n\ncontext vectors = {show(UNSCALED @ X)}",
    "Spanish commas": f"{GIVEN}A = {show(WEIGHTS)}".replace(".", ",").replace(", d_k", ". d_k"),
}  # fmt: skip


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_what_is_right_in_its_setting_is_not_accused(text):
    report = check(text)
    assert [(f.line, f.printed, f.what.en) for f in report.findings] == []
    assert report.checked >= 9
    assert is_clean(report)


WRONG = {
    "the scale 1/√d_k is missing": (
        f"{GIVEN}Attention weights: {show(UNSCALED)}\n",
        f"{GIVEN}Attention weights:\n\n{show(UNSCALED)}\n",
        rf"{GIVEN}$$S = {show(SCORES, 0)}$$ $$\frac{{S}}{{\sqrt{{d_k}}}} = {show(SCORES)}$$",
    ),
    "the mask is missing": (
        f"# Causal attention\n\n{GIVEN}Attention weights:\n\n{show(WEIGHTS)}\n",
        f"{GIVEN}weights = {show(WEIGHTS)}\n\n## Now with a causal mask\n\n"
        f"weights = {show(WEIGHTS)}",
    ),
    "the mask is applied after the softmax, and the rows are not normalised again": (
        f"{GIVEN}With a causal mask, weights = {show(WEIGHTS * KEEP)}",
    ),
    "divided by d_k instead of √d_k": (f"{GIVEN}scaled scores = {show(SCORES / 2)}",),
    "the softmax runs over the wrong axis, down the columns": (
        f"{GIVEN}softmax = {show(SCALED.softmax(0))}",
    ),
    "truncated instead of rounded": (f"{GIVEN}A = {show((WEIGHTS * 1000).floor() / 1000)}",),
    "the sign is wrong": (f"{GIVEN}Scores: S_{{01}} = -2.0",),
    "two digits are swapped": (f"{GIVEN}A = {show(WEIGHTS).replace('0.187', '0.178')}",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "text"), [(cause, text) for cause, texts in WRONG.items() for text in texts]
)
def test_a_mistake_is_named_once(cause, text):
    report = check(text)
    assert {f.cause.en for f in report.findings if f.cause} == {cause}
    assert len({f.root for f in report.findings if f.verdict == "wrong"}) == 1
    assert not is_clean(report)


def test_what_follows_from_a_wrong_number_points_to_it():
    text = f"{GIVEN}Attention weights: {show(UNSCALED)}\n\nOutput: {show(UNSCALED @ X)}\n"
    report = check(text)
    later = [f for f in report.findings if f.line > 5]
    assert later
    assert {f.verdict for f in later} == {"follows"}
    assert {f.root for f in later} == {report.findings[0].start}


def test_steps_that_are_computed_from_rounded_ones_are_off_in_the_last_digit_only():
    rounded = (WEIGHTS * 10).round() / 10
    text = f"{GIVEN}A = {show(rounded, 1)}\n\nZ = A V = {show(rounded @ X, 2)}\n"
    report = check(text)
    assert report.findings
    assert {f.verdict for f in report.findings} == {"last digit"}
    assert is_clean(report)
    assert "off in the last digit only" in verdict(report).en
    assert "nothing wrong" in verdict(report).en


def test_a_missing_scale_that_the_text_leaves_open_is_neither_accused_nor_certified():
    scores = f"Scores = {show(SCORES, 0)}"
    report = check(f"{BARE}{scores}\n\nAttention weights = {show(UNSCALED)}")
    assert report.findings == ()
    assert [array.labelled for array in report.unmatched] == [True]
    assert "--scale 1" in report.unmatched[0].why.en
    assert not is_clean(report)
    assert "not everything could be checked" in verdict(report).en


def test_a_labelled_array_that_matches_nothing_is_not_certified():
    nothing = "[[9.1, 8.2, 7.3], [6.4, 5.5, 4.6], [3.7, 2.8, 1.9]]"
    report = check(f"{GIVEN}A = {show(WEIGHTS)}\n\nS = {nothing}")
    assert not is_clean(report)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("We add a causal mask.", True),
        ("Without a mask this is easy.", False),
        ("Ahora con una máscara causal.", True),
        ("这里不加掩码。", False),
        ("加上因果掩码。", True),
        ("マスクなし", False),
    ],
)
def test_a_mention_of_the_mask_is_on_or_off(text, said):
    assert [m.on for m in mentions(text, MASK_ON, MASK_OFF)] == [said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Divide by √2.", True),
        ("We skip the scaling.", False),
        ("ohne Skalierung", False),
        ("这里不缩放。", False),
    ],
)
def test_a_mention_of_the_scale_is_on_or_off(text, said):
    assert [m.on for m in mentions(text, SCALE_ON, SCALE_OFF)] == [said]


def test_a_step_takes_over_the_mask_and_a_variant_may_leave_it():
    text = "Intro.\nExample 1. A causal mask.\nExample 2. Nothing said.\n"
    parts = read_parts(text, [])
    choices = Choices(parts, mentions(text, MASK_ON, MASK_OFF), usual=False)
    first, second = part_at(parts, text.index("A causal")), part_at(parts, text.index("Nothing"))
    assert (choices.at(first, len(text)).on, choices.at(first, len(text)).off) == (True, False)
    assert (choices.at(second, len(text)).on, choices.at(second, len(text)).off) == (True, True)


def test_brackets_with_a_subtraction_are_no_array():
    text = (
        "X = [[1,0,1,0],[0,1,0,1]]\nSubtract the row maximum: [0.5 - 1.0, 1.0 - 1.0] = [-0.5, 0.0]"
    )
    assert check(text).findings == ()
