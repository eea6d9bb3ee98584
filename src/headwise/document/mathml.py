"""Formulas as MathML, from a fixed list of elements, with every character escaped."""

import html
from xml.etree.ElementTree import Element

from headwise.document.blocks import Formula
from headwise.document.formulas import math
from headwise.document.plain import clean
from headwise.errors import MissingExtra

_ELEMENTS = (
    *("math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msub"),
    *("msup", "msubsup", "munder", "mover", "munderover", "mtable", "mtr", "mtd", "menclose"),
    *("mpadded", "mphantom", "mstyle"),
)
_ATTRIBUTES = (
    *("display", "stretchy", "fence", "form", "accent", "mathvariant", "columnalign"),
    *("separator", "width", "minsize", "maxsize", "displaystyle", "movablelimits", "notation"),
)

_STUMBLES = (AttributeError, IndexError, KeyError, RecursionError, StopIteration, ValueError)
"""What the converter raises, beside its own errors, on LaTeX that is malformed."""


def mathml(formula: Formula, *, block: bool = False) -> str:
    r"""The formula as MathML; as plain text in a ``<code>`` where its LaTeX is not to be used.

    Raises:
        MissingExtra: if latex2mathml is not installed.

    Example:
        >>> mathml(Formula("<b>", r"\input{x}"))
        '<code>&lt;b&gt;</code>'
    """
    try:
        from latex2mathml import exceptions
        from latex2mathml.converter import convert_to_element
    except ImportError as error:
        raise MissingExtra.of("latex2mathml", "html") from error
    own = (e for e in vars(exceptions).values() if isinstance(e, type))
    stumbles: tuple[type[Exception], ...] = (
        *(e for e in own if issubclass(e, Exception)),
        *_STUMBLES,
    )
    latex = math(formula)
    if latex is not None:
        try:
            root = convert_to_element(latex, display="block" if block else "inline")
            return _written(root)
        except stumbles:
            pass  # what the converter cannot read is shown as it would be in a terminal
    return f"<code>{html.escape(clean(formula.plain))}</code>"


def _written(element: Element, form: str | None = None) -> str:
    """One element as text. The converter's own writer leaves ``<`` in a text as it is."""
    if element.tag not in _ELEMENTS:
        return "".join(map(_written, element))
    word = _word(element)
    if word is not None:
        return f'<mi mathvariant="normal">{word}</mi>'
    known = {name: value for name, value in element.attrib.items() if name in _ATTRIBUTES}
    known |= {"form": form} if form else {}
    attributes = "".join(f' {name}="{html.escape(value)}"' for name, value in known.items())
    text = html.escape(html.unescape(element.text or ""), quote=False)
    inside = text + "".join(map(_written, element, _forms(element)))
    return f"<{element.tag}{attributes}>{inside}</{element.tag}>"


def _forms(element: Element) -> list[str | None]:
    """For each child whether it is a sign: a minus after a bracket, a comma or a relation."""
    forms: list[str | None] = []
    before = "("
    for child in element:
        text = html.unescape(child.text or "") if child.tag == "mo" else ""
        forms.append("prefix" if text in ("-", "−") and before in tuple("([,=≈+×/") else None)
        before = text
    return forms


def _word(element: Element) -> str | None:
    r"""The letters of ``\mathrm{softmax}`` as one identifier, so that they are read as a word."""
    letters = list(element)
    upright = all(
        child.tag == "mi" and child.get("mathvariant") == "normal" and not len(child)
        for child in letters
    )
    if element.tag != "mrow" or len(letters) < 2 or not upright:
        return None
    return html.escape(html.unescape("".join(child.text or "" for child in letters)))
