"""`headwise check` finds no wrong number in the output of `headwise explain`."""

import pytest

from headwise.check import check, read_article
from headwise.cli import main

COMMANDS = {
    "default": (),
    "causal": ("--mask", "causal"),
    "heads": ("--heads", "4"),
    "one head": ("--heads", "1"),
    "seed": ("--seed", "3"),
    "seed causal": ("--seed", "5", "--mask", "causal", "--heads", "4"),
    "few decimals": ("--precision", "3", "--seed", "7"),
    "english": ("--tokens", "the,cat,key"),
}


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", ["a.md", "a.tex"])
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_nothing_is_wrong(tmp_path, words, name, lang):
    path = tmp_path / name
    assert main(["explain", *words, "--lang", lang, "--output", str(path)]) == 0
    report = check(read_article(path))
    assert [(f.line, f.printed, f.right, f.what.en) for f in report.findings] == []
    assert report.unmatched_count <= 4
    assert report.checked > 100


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("words", [COMMANDS["causal"], COMMANDS["seed"]])
def test_nothing_is_wrong_in_a_page(tmp_path, words, lang):
    test_nothing_is_wrong(tmp_path, words, "a.html", lang)


@pytest.mark.parametrize("said", ["N = 7.", "E = 8", "Z = 1.7543 + 0 + 0 ≈ 1.7543"])
def test_sizes_and_sums_are_no_entries(said):
    report = check(f"One head. X = [[1.0, 2.0], [0.5, 1.5]]\nScores: {said}\n")
    assert report.findings == ()


def test_lengths_of_a_typesetter_are_no_numbers():
    said = r"{\raggedright\hangindent=2em $\displaystyle e^{0.5} \approx 1.6487$\par}"
    report = check("One head. X = [[1.0, 2.0], [0.5, 1.5]]\n" + said)
    assert (report.checked, report.findings, report.unmatched) == (2, (), ())
    assert [
        f.printed
        for f in check("X = [[1.0, 2.0], [0.5, 1.5]]\n" + said.replace("87", "88")).findings
    ] == ["1.6488"]
