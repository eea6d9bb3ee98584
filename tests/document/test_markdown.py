import math

import pytest
from markdown_it import MarkdownIt

from headwise.document import Code, Document, Formula, Matrix, Paragraph, Working
from headwise.document.markdown import render
from headwise.lang import Text, same
from tests.document.attack import EMPTY, EVIL, everywhere

READER = MarkdownIt("commonmark", {"html": True}).enable("table")


def tokens(text):
    for token in READER.parse(text):
        yield token
        yield from token.children or []


@pytest.mark.parametrize("text", EVIL)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_text_adds_no_markup(text, lang):
    calm, loud = everywhere("calm"), everywhere(text)
    kinds = {token.type for token in tokens(render(loud, lang))}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "code_inline"}
    headings = [t for t in tokens(render(loud, lang)) if t.type == "heading_open"]
    assert len(headings) == sum(t.type == "heading_open" for t in tokens(render(calm, lang)))


@pytest.mark.parametrize("text", [text for text in EVIL if text])
def test_a_paragraph_shows_the_text_it_was_given(text):
    from headwise.document.text_format import clean

    shown = READER.render(render(Document(same("t"), (Paragraph(same(text)),))))
    from html import unescape

    assert unescape(shown.split("<p>")[1].split("</p>")[0]) == clean(text)


def test_a_matrix_is_latex_with_its_labels_said_once():
    matrix = Matrix(Formula("A_1", "A_{1}"), [[0.5, -math.inf], [2e12, -1.0]], ["我", "b"])
    text = render(Document(same("t"), (matrix, matrix), 1), "zh")
    assert text.count("行：我 · b") == 1
    assert "0.5 & -\\infty \\\\\n2.0 \\times 10^{12} & -1.0 \\\\\n" in text
    assert text.count("$$\nA_{1} = \\begin{bmatrix}") == 2


def test_a_working_is_one_formula_a_line():
    lines = [Formula("1+1=2", "1 + 1 = 2"), Formula("a", "a")]
    assert "- $1 + 1 = 2$\n- $a$" in render(Document(same("t"), (Working(lines),)))


def test_a_fence_is_longer_than_any_in_the_code():
    source = "````\nx\n"
    kinds = [t for t in tokens(render(Document(same("t"), (Code(source),)))) if t.type == "fence"]
    assert [t.content for t in kinds] == [source]


def test_empty_blocks_are_fine():
    assert "bmatrix" in render(EMPTY)


def test_a_formula_in_prose():
    said = Text("$d_k$ = {n}, $E$ - 1", n="$2$")
    assert "$d_k$ = \\$2\\$, $E$ - 1" in render(Document(same("t"), (Paragraph(said),)))
