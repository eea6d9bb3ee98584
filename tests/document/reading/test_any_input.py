"""Whatever a file holds, reading it ends in text or in one clear error."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.document.reading import from_bytes
from headwise.errors import BadFile
from headwise.explain.article_arrays import arrays
from tests.document.reading.test_reading import docx, paragraph

WORDS = (
    *("<table>", "</table>", "<tr>", "<td>", "<td rowspan=2 colspan=3>", "<th>", "</td>", "</tr>"),
    *("<math>", "</math>", "<mfrac>", "</mfrac>", "<msub>", "<mo>-</mo>", "<mn>2</mn>", "<mtable>"),
    *("<sub>", "</sub>", "<sup><a>", "</a>", "<pre>", "</pre>", "<script>", "</script>", "<!--"),
    *("-->", "<p hidden>", "</p>", "<h2>", "<br/>", "<span lang=zh>", "</span>", "&amp;", "&#x;"),
    *("= ", "X = ", "[[1, 2]", "]", "[", "| 1 | 2 |\n", "| --- |\n", "\n", "\n\n", " ", "0.5", "−"),
    *("\\begin{bmatrix}", "\\end{bmatrix}", "\\\\", "&", "%", "\\%", "\\begin{verbatim}", "$$"),
    *(".. math::\n", ".. list-table::\n", "   * - a\n", "     - b\n", "=== ===\n", "+--+--+\n"),
    *("::\n", "----\n", ":math:`x`", "---\n", "a: b\n", "词", "\x00", "\ufeff", "\r", "\t"),
)
SUFFIXES = (".html", ".md", ".tex", ".rst", ".txt", ".ipynb", ".docx", "")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SUFFIXES), st.lists(st.sampled_from(WORDS), max_size=30))
def test_any_mixture_of_marks(suffix, words):
    with contextlib.suppress(BadFile):
        article = from_bytes("".join(words).encode(), suffix)
        assert not article.places or len(article.places) == article.text.count("\n")
        list(arrays(article.text))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SUFFIXES), st.binary(max_size=200))
def test_any_bytes(suffix, raw):
    with contextlib.suppress(BadFile):
        from_bytes(raw, suffix)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "cells",
                    "worksheets",
                    "source",
                    "outputs",
                    "cell_type",
                    "data",
                    "text",
                    "text/plain",
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(JSON, JSON)
def test_any_json_as_a_notebook(cells, outputs):
    for content in (
        cells,
        {"cells": cells},
        {"cells": [{"cell_type": "code", "outputs": outputs}]},
    ):
        with contextlib.suppress(BadFile):
            from_bytes(json.dumps(content).encode(), ".ipynb")


BODY = f"<w:tbl><w:tr><w:tc>{paragraph('a')}</w:tc></w:tr></w:tbl>{paragraph('X = 1', 'Heading1')}"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_damage_to_a_word_document(data):
    raw = bytearray(docx(BODY))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadFile):
        from_bytes(bytes(raw), ".docx")
    with contextlib.suppress(BadFile):
        from_bytes(bytes(raw[: data.draw(st.integers(0, len(raw)))]), ".docx")


TAGS = (
    "w:p",
    "w:tbl",
    "w:tr",
    "w:tc",
    "w:t",
    "m:oMath",
    "m:f",
    "m:e",
    "m:m",
    "m:mr",
    "w:del",
    "w:tab",
)


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.sampled_from(("", "1")),
        lambda inner: st.lists(st.tuples(st.sampled_from(TAGS), inner), max_size=3).map(
            lambda items: "".join(f"<{tag}>{body}</{tag}>" for tag, body in items)
        ),
        max_leaves=10,
    )
)
def test_any_order_of_the_elements_of_a_word_document(body):
    from_bytes(docx(body), ".docx")


@pytest.mark.parametrize("style", ["Heading", "heading", "Heading10", "HEADING9", "headingx"])
def test_any_style_of_a_paragraph(style):
    assert from_bytes(docx(paragraph("a", style)), ".docx").text.endswith("a\n")
