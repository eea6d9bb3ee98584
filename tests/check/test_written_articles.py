"""Right articles give no accusation; a planted mistake is found and named."""

import pytest

from headwise.check import check
from headwise.check.checker import is_clean
from tests.check.written_articles import MISTAKES, write

CAUSES = {
    "scale": "the scale 1/√d_k is missing",
    "axis": "down the columns",
    "transposed": "K Qᵀ",
    "mask": "the mask is missing",
    "mask late": "the mask is applied after the softmax",
    "slip": "wrong",
    "truncated": "truncated",
    "keys": "multiplied by K",
    "row": "wrong",
}


@pytest.mark.parametrize("seed", range(40))
def test_a_right_article_has_no_finding_and_everything_is_matched(seed):
    article = write(seed)
    report = check(article.text)
    assert [(f.line, f.printed, f.what.en) for f in report.findings] == []
    assert [(a.line, a.text, a.why.en) for a in report.unmatched] == []
    assert is_clean(report)


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("seed", range(100, 106))
def test_a_planted_mistake_is_found_and_named(mistake, seed):
    article = write(seed, mistake)
    report = check(article.text)
    roots = [f for f in report.findings if f.verdict == "wrong"]
    assert bool(roots) == article.planted
    assert is_clean(report) != article.planted
    if len({f.start for f in roots}) > 1:
        assert CAUSES[mistake] in " ".join(f.cause.en for f in roots if f.cause)
