from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.document import Formula
from headwise.document.formulas import COMMANDS, math, mathml
from tests.document.attack import EVIL


def well_formed(markup):
    """Parse what was written; it fails on a bracket that was not escaped."""
    ElementTree.fromstring(markup)  # noqa: S314 - our own markup, without entities


@pytest.mark.parametrize(
    "latex",
    [
        r"\input{x}",
        r"\write18{id}",
        r"\def\a{b}",
        r"\href{javascript:alert(1)}{x}",
        r"\begin{filecontents}x\end{filecontents}",
        r"\begin{bmatrix}1\end {verbatim}",
        r"x $ y",
        r"x % y",
        r"x & y",
        r"^^5cinput",
        r"\csname input\endcsname",
        r"{x",
        r"x}{",
        r"\text{<img src=x>}",
        "x" * 30_000,
        "",
    ],
)
def test_latex_that_could_act_is_not_used(latex):
    assert math(Formula("plain", latex)) is None
    assert mathml(Formula("<plain>", latex)) == "<code>&lt;plain&gt;</code>"


@pytest.mark.parametrize("text", EVIL)
def test_evil_text_never_becomes_an_element_of_html(text):
    for latex in (text, rf"\text{{{text}}}", rf"\mathrm{{{text}}}"):
        shown = mathml(Formula(text, latex))
        assert "<img" not in shown
        assert "</script" not in shown
        well_formed(shown)


@given(st.text(alphabet="\\{}^_&<>$ab1frac sqrtlefbegin[].", max_size=30))
def test_any_latex_gives_well_formed_markup_or_its_plain_text(latex):
    well_formed(mathml(Formula("plain & <text>", latex)))


def test_a_word_is_one_identifier_and_a_sign_is_a_prefix():
    shown = mathml(Formula("", r"\mathrm{softmax}(-1)"))
    assert ">softmax</mi>" in shown
    assert 'form="prefix">−</mo>' in shown


def test_commands_are_listed_once():
    assert len(COMMANDS) == len(set(COMMANDS))
