r"""Convert formulas of HTML pages (MathML) and of Word documents (OMML) to LaTeX.

Both are trees whose elements stand for fractions, indices, roots and matrices. `FormulaBuilder`
takes their starts, texts and ends in order and never recurses, so that nesting costs no stack.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

MOST_NESTING = 40  # the maximum depth; deeper elements are read as part of their parent

_ACCENTS = {"~": r"\tilde", "˜": r"\tilde", "\u0303": r"\tilde", "^": r"\hat", "ˆ": r"\hat"}
_ACCENTS |= {"\u0302": r"\hat", "¯": r"\bar", "‾": r"\bar", "\u0304": r"\bar", "→": r"\vec"}
_ACCENTS |= {"\u20d7": r"\vec", "\u0305": r"\bar", "˙": r"\dot"}
_OPERATORS = set("=≈≃≡<>≤≥→⇒+-−±×⋅·*/÷,;([{|:")
_OPENING, _CLOSING = tuple("([{"), tuple(")]},;")
_INVISIBLE = str.maketrans("", "", "\u2061\u2062\u2063\u2064\u200b")


@dataclass
class _Frame:
    """An open element: its name, its finished parts, and its properties."""

    name: str
    parts: list[tuple[str, str]] = field(default_factory=list)  # name and LaTeX
    properties: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """Return the first part with a name."""
        return next((text for part, text in self.parts if part == name), "")

    def number(self, index: int) -> str:
        """Return the part at an index, or "" if there are fewer parts."""
        return self.parts[index][1] if index < len(self.parts) else ""

    @property
    def row(self) -> str:
        """The LaTeX of all parts in one row."""
        return _row([text for _, text in self.parts])


class FormulaBuilder:
    r"""A builder of the LaTeX of one formula.

    Example:
        >>> formula = FormulaBuilder()
        >>> for tag in ("mfrac", "mi", "S", "/mi", "msqrt", "mn", "2", "/mn", "/msqrt", "/mfrac"):
        ...     if tag in ("S", "2"):
        ...         formula.text(tag)
        ...     elif tag.startswith("/"):
        ...         formula.end(tag[1:])
        ...     else:
        ...         formula.start(tag, {})
        >>> formula.latex()
        '\\frac{S}{\\sqrt{2}}'
    """

    def __init__(self) -> None:
        self.open = [_Frame("row")]
        self.too_deep = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Handle the start of an element; names of ``attributes`` have no namespace."""
        if self.too_deep or len(self.open) > MOST_NESTING or name in _SETTINGS:
            if name in _SETTINGS:
                self.open[-1].properties[name] = attributes.get("val", "")
            self.too_deep += 1
            return
        self.open.append(_Frame(name, properties=dict(attributes)))

    def text(self, text: str) -> None:
        """Handle text in the innermost element."""
        shown = " ".join(text.translate(_INVISIBLE).split())
        if shown:
            self.open[-1].parts.append(("", shown))

    def end(self, name: str) -> None:
        """Handle the end of an element."""
        if self.too_deep:
            self.too_deep -= 1
            return
        if len(self.open) > 1 and any(frame.name == name for frame in self.open[1:]):
            while len(self.open) > 1:
                closed = self.open.pop()
                self._close(closed)
                if closed.name == name:
                    return

    def latex(self) -> str:
        """Return the formula, after closing all open elements."""
        while len(self.open) > 1:
            self._close(self.open.pop())
        return self.open[0].row

    def _close(self, frame: _Frame) -> None:
        parent = self.open[-1]
        if frame.name.endswith("Pr"):  # the properties of a Word element
            parent.properties |= frame.properties
            return
        write = _WRITERS.get(frame.name)
        text = frame.row if write is None else write(frame)
        if text or frame.name in _PLACES:
            parent.parts.append((frame.name, text))


def _row(texts: list[str]) -> str:
    """Join parts with spaces, but without a space between a sign and its number."""
    result: list[str] = []
    for text in filter(None, texts):
        before = result[-1] if result else ""
        sign = _is_sign(before, result[-2] if len(result) > 1 else "")
        digits = bool(before) and before[-1].isdigit()
        joined = (digits and text in (".", "%")) or (before[-1:] == "." and text[0].isdigit())
        inside = before[-1:] in _OPENING or text[0] in _CLOSING
        applied = text[0] in _OPENING and (before[-1:].isalpha() or before[-1:] == "}")
        if result and (sign or joined or inside or applied):
            result[-1] += text
        else:
            result.append(text)
    return " ".join(result)


def _is_sign(before: str, earlier: str) -> bool:
    """Return whether a text ends with the sign of a number, rather than with an operator."""
    preceding = before[:-1].rstrip() or earlier
    return before[-1:] in ("-", "−", "+") and (not preceding or preceding[-1] in _OPERATORS)


def _accented(frame: _Frame) -> str:
    base, over = frame.number(0), frame.number(1)
    if over in _ACCENTS:
        return f"{_ACCENTS[over]}{{{base}}}"
    return base if over in ("⏞", "︷", "_") else f"{base}^{{{over}}}"


def _word_accent(frame: _Frame) -> str:
    accent = _ACCENTS.get(frame.properties.get("chr", ""), r"\hat")
    return f"{accent}{{{frame.of('e')}}}"


def _table(frame: _Frame) -> str:
    rows = [text for name, text in frame.parts if name in ("mtr", "mlabeledtr", "mr")]
    if any(re.search(r"[=≈]", text) for text in rows):  # a list of equations
        return r" \\ ".join(text.replace(" & ", " ") for text in rows)
    body = r" \\ ".join(rows)
    return rf"\begin{{matrix}} {body} \end{{matrix}}"


def _cells(frame: _Frame) -> str:
    return " & ".join(text for name, text in frame.parts if name in ("mtd", "e"))


def _fenced(frame: _Frame) -> str:
    """Write a fenced expression of MathML or of Word: parts in brackets."""
    opening = frame.properties.get("begChr", frame.properties.get("open", "("))
    closing = frame.properties.get("endChr", frame.properties.get("close", ")"))
    between = frame.properties.get("sepChr", ",") + " "
    return f"{opening}{between.join(text for _, text in frame.parts)}{closing}"


def _sum_with_limits(frame: _Frame) -> str:
    sign = frame.properties.get("chr", "∫") or "∫"
    limits = (("_", frame.of("sub")), ("^", frame.of("sup")))
    written = "".join(f"{mark}{{{text}}}" for mark, text in limits if text)
    return f"{sign}{written} {frame.of('e')}"


def _root(degree: str, base: str) -> str:
    return rf"\sqrt[{degree}]{{{base}}}" if degree else rf"\sqrt{{{base}}}"


def _words(frame: _Frame) -> str:
    return frame.row.replace("{", "").replace("}", "").replace("\\", "")


def _indexed(*marks: str) -> Callable[[_Frame], str]:
    """Return a writer of a base with a subscript, a superscript, or both."""

    def write(frame: _Frame) -> str:
        index = (f"{mark}{{{frame.number(i)}}}" for i, mark in enumerate(marks, 1))
        return frame.number(0) + "".join(index)

    return write


def _semantics(frame: _Frame) -> str:
    """Return the LaTeX annotation of the page's author, or else the displayed formula."""
    return frame.of("annotation") or frame.number(0)


def _annotation(frame: _Frame) -> str:
    return frame.row if "tex" in frame.properties.get("encoding", "").lower() else ""


_SETTINGS = {"chr", "begChr", "endChr", "sepChr", "degHide", "ctrlPr"}
"""Elements of Word that set a property of the element two levels above."""

_PLACES = {"mtd", "e", "mi", "mrow", "none", "sub", "sup", "num", "den", "deg", "mtr", "mr"}
"""Elements whose position counts even if they are empty."""

_WRITERS: dict[str, Callable[[_Frame], str]] = {
    "mfrac": lambda frame: rf"\frac{{{frame.number(0)}}}{{{frame.number(1)}}}",
    "msqrt": lambda frame: _root("", frame.row),
    "mroot": lambda frame: _root(frame.number(1), frame.number(0)),
    "msub": _indexed("_"),
    "msup": _indexed("^"),
    "msubsup": _indexed("_", "^"),
    "munder": _indexed("_"),
    "munderover": _indexed("_", "^"),
    "mover": _accented,
    "mtable": _table,
    "mtr": _cells,
    "mlabeledtr": _cells,
    "mfenced": _fenced,
    "mtext": _words,
    "semantics": _semantics,
    "annotation": _annotation,
    "annotation-xml": lambda _frame: "",
    "mphantom": lambda _frame: "",
    "f": lambda frame: rf"\frac{{{frame.of('num')}}}{{{frame.of('den')}}}",
    "rad": lambda frame: _root(frame.of("deg"), frame.of("e")),
    "sSub": lambda frame: f"{frame.of('e')}_{{{frame.of('sub')}}}",
    "sSup": lambda frame: f"{frame.of('e')}^{{{frame.of('sup')}}}",
    "sSubSup": lambda frame: f"{frame.of('e')}_{{{frame.of('sub')}}}^{{{frame.of('sup')}}}",
    "d": _fenced,
    "m": _table,
    "mr": _cells,
    "eqArr": lambda frame: r" \\ ".join(text for _, text in frame.parts),
    "acc": _word_accent,
    "bar": lambda frame: rf"\bar{{{frame.of('e')}}}",
    "nary": _sum_with_limits,
    "func": lambda frame: f"{frame.of('fName')} {frame.of('e')}",
    "limLow": lambda frame: f"{frame.of('e')}_{{{frame.of('lim')}}}",
    "limUpp": lambda frame: f"{frame.of('e')}^{{{frame.of('lim')}}}",
}
