"""Articles that print rounded inputs but compute with the inputs before rounding."""

import pytest
import torch

from headwise.check import CheckOptions, check
from headwise.check.expression_reader import Reader
from headwise.check.expression_tree import pairs, scan
from headwise.check.verdicts.targets import rounded


def shown(values, places):
    rows = (", ".join(f"{value:.{places}f}" for value in row) for row in values.tolist())
    return "[" + ",\n ".join(f"[{row}]" for row in rows) + "]"


def article(seed, places, length=5, width=4):
    """One head computed by plain formulas in float64, and everything printed rounded."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(length, width, generator=generator, dtype=torch.float64)
    weights = torch.randn(3, width, width, generator=generator, dtype=torch.float64)
    q, k, v = (x @ weight for weight in weights)
    scores = q @ k.T
    softmax = (scores / width**0.5).softmax(-1)
    named = [("X", x), *zip(("W^Q", "W^K", "W^V"), weights, strict=True)]
    named += [("Q", q), ("K", k), ("V", v), ("scores", scores)]
    named += [("scaled scores", scores / width**0.5), ("softmax", softmax)]
    named += [("output", softmax @ v)]
    return "One head.\n\n" + "\n\n".join(f"{name} = {shown(m, places)}" for name, m in named)


@pytest.mark.parametrize("places", [3, 4])
@pytest.mark.parametrize("seed", [2, 3, 5, 7, 11])
def test_what_rounding_explains_is_not_wrong(seed, places):
    report = check(article(seed, places))
    assert [(found.printed, found.what.en) for found in report.findings] == []
    assert report.checked == 3 * 5 * 4 + 2 * 5 * 5 + 5 * 5 + 5 * 4
    assert any(f"rounded to {places} decimals" in note.en for note in report.notes)


def test_what_rounding_does_not_explain_is_wrong():
    text = article(13, 4)
    head, last = text.rsplit("output = [[", 1)
    number, rest = last.split(",", 1)
    off = f"{float(number) + 0.05:.4f}"
    report = check(f"{head}output = [[{off},{rest}")
    assert [found.printed for found in report.findings] == [off]
    assert report.findings[0].what.en.startswith("output, row 0, column 0")


def test_an_input_of_few_decimals_is_exact():
    said = (
        "One head, X = [[0.37, 1.21], [0.52, 0.11]]. Scores = [[1.6010, 0.3255], [0.3255, 0.2825]]"
    )
    report = check(said)
    assert (report.checked, report.findings) == (4, ())
    assert not any("rounded" in note.en for note in report.notes)
    assert len(check(said.replace("0.3255]", "0.3256]")).findings) == 1


def test_given_options_are_exact():
    text = article(17, 4)
    body = text[text.index("\nQ = ") :]
    x = torch.zeros(5, 4, dtype=torch.float64)
    report = check(body, CheckOptions(x=x, heads=1))
    assert not any("rounded" in note.en for note in report.notes)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[0.5, 1.1], [1.0, 0.2]]", False),
        ("[[0.25, 1.13], [1.07, 0.22]]", False),
        ("[[0.500, 1.100], [1.000, 0.200]]", False),
        ("[[0.513, 1.104], [1.040, 0.200]]", False),
        ("[[0.513, 1.104], [1.047, 0.200]]", True),
        ("[[1, 0], [0, 1]]", False),
    ],
)
def test_which_matrices_count_as_rounded(text, expected):
    tokens = scan(text)
    assert rounded(Reader(tokens, pairs(tokens)).array(0)) is expected
