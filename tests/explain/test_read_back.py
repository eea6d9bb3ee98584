"""What explain writes can be read back, as HTML, LaTeX and Markdown, at any size."""

import pytest
import torch

import headwise as hw
from headwise.document import html, latex, markdown
from headwise.document.reading import from_bytes
from headwise.explain.article_arrays import arrays
from headwise.explain.steps import steps
from headwise.explain.trace import Projections, trace

WRITERS = {".html": html.render, ".tex": latex.render, ".md": markdown.render}


def drawn(rows, columns, heads, **options):
    torch.manual_seed(rows)
    weights = Projections(*torch.randn(4, columns, columns, dtype=torch.float64))
    x = torch.randn(rows, columns, dtype=torch.float64)
    return trace(x, heads, projections=weights, **options)


def rounded(values, precision=4):
    return [[round(v, precision) + 0.0 for v in row] for row in values.tolist()]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize(
    ("rows", "columns", "heads", "head", "mask"),
    [
        (3, 4, 2, None, None),
        (5, 6, 3, None, hw.causal()),
        (12, 12, 2, None, None),
        (11, 9, 3, 2, None),
    ],
)
def test_every_array_is_read_back(suffix, lang, rows, columns, heads, head, mask):
    traced = drawn(rows, columns, heads, mask=mask)
    raw = WRITERS[suffix](steps(traced, head=head), lang).encode("utf-16")
    article = from_bytes(raw, suffix)
    found = [array.table.rows for array in arrays(article.text)]
    for quantity in traced.quantities:
        hidden = quantity.key == "masked" and not traced.changed_by_mask
        if not hidden and quantity.head in (None, head or quantity.head):
            assert rounded(quantity.values) in found, (quantity.key, quantity.head)


def test_a_large_page_is_read_without_its_pictures():
    traced = drawn(60, 16, 2)
    page = html.render(steps(traced, head=1), "en")
    article = from_bytes(page.encode(), ".html")
    assert len(page) > 200_000
    assert len(article.text) < len(page) / 2
    assert "weights" in article.text
    assert "json" not in article.text


def test_only_one_of_two_languages_is_read():
    page = html.render(steps(drawn(3, 4, 2)), "zh").encode()
    text = from_bytes(page, ".html").text
    assert "词元" in text
    assert "tokens" not in text
