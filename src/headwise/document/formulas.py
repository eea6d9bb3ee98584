"""Formulas: LaTeX limited to mathematics, and MathML from a fixed list of elements."""

import html
import re
from xml.etree.ElementTree import Element

from headwise.document.blocks import Formula
from headwise.document.text_format import clean
from headwise.errors import MissingExtra

LONGEST = 20_000

COMMANDS = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "iota"),
    *("kappa", "lambda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "phi", "varphi", "chi"),
    *("psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Phi", "Psi"),
    *("Omega", "ell", "infty", "partial", "nabla", "top", "bot", "circ", "prime", "hbar"),
    *("cdot", "times", "div", "pm", "mp", "ast", "oplus", "otimes", "odot", "cup", "cap"),
    *("approx", "equiv", "neq", "ne", "leq", "le", "geq", "ge", "lt", "gt", "ll", "gg", "sim"),
    *("in", "notin", "subset", "to", "mapsto", "rightarrow", "Rightarrow", "leftarrow", "iff"),
    *("frac", "dfrac", "tfrac", "sqrt", "sum", "prod", "max", "min", "exp", "log", "ln", "lim"),
    *("hat", "tilde", "bar", "vec", "overline", "underline", "widehat", "widetilde", "boxed"),
    *("underbrace", "overbrace", "left", "right", "big", "Big", "bigl", "bigr", "Bigl", "Bigr"),
    *("lVert", "rVert", "lvert", "rvert", "langle", "rangle", "lfloor", "rfloor", "lceil"),
    *("rceil", "mathrm", "mathbf", "mathit", "mathsf", "mathtt", "mathcal", "mathbb", "text"),
    *("operatorname", "ldots", "cdots", "vdots", "ddots", "dots", "quad", "qquad", "mid"),
    *("forall", "exists", "neg", "land", "lor", "displaystyle", "begin", "end", "hline"),
)
"""Every command a formula may use; each draws and does nothing else."""

ENVIRONMENTS = ("bmatrix", "pmatrix", "matrix", "vmatrix", "cases", "aligned", "gathered", "array")

_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{([^{}]*)\}")
_MARKUP_IN_WORDS = re.compile(r"\\(?:text|operatorname)\s*\{[^{}]*[<>]")
_DRAWN = "\\,;:! {}|_%#&$"
"""Characters that may stand after a backslash."""


def math(formula: Formula) -> str | None:
    r"""The formula's LaTeX if it only draws, with < and > as commands; None if it does not.

    Example:
        >>> math(Formula("a < b", "a < b"))
        'a \\lt b'
        >>> math(Formula("x", r"\input{/etc/passwd}")) is None
        True
    """
    latex = clean(formula.latex).strip()
    if _MARKUP_IN_WORDS.search(latex):
        return None
    spelled = re.sub(r"\s*<\s*", r" \\lt ", re.sub(r"\s*>\s*", r" \\gt ", latex))
    return spelled if latex and len(latex) <= LONGEST and _draws(spelled) else None


_BREAKS = re.compile(r"(?:=|\\approx|\\leq?|,\\quad|,)(?= )|(?<= )(?=\+ )")


def pieces(formula: Formula) -> list[Formula]:
    r"""A formula cut after its relations and before its sums, where a line may be broken.

    Example:
        >>> [piece.latex for piece in pieces(Formula("", "a = [1, 2] + 2"))]
        ['a =', '[1, 2]', '+ 2']
    """
    latex = math(formula)
    if latex is None or "\\begin" in latex:
        return [formula]
    cuts = [0]
    depth = position = 0
    for match in _BREAKS.finditer(latex):
        between = _COMMAND.sub("  ", latex[position : match.start()])
        depth += sum(c in "{[(" for c in between) - sum(c in "}])" for c in between)
        depth += latex.count("\\left", position, match.start())
        depth -= latex.count("\\right", position, match.start())
        position = match.start()
        if depth == 0:
            cuts.append(match.end())
    cut = (latex[a:b].strip() for a, b in zip(cuts, [*cuts[1:], None], strict=True))
    return [Formula(formula.plain, piece) for piece in cut if piece]


def _draws(latex: str) -> bool:
    commands = _COMMAND.findall(latex)
    known = all(c in COMMANDS if c[0].isalpha() else c in _DRAWN for c in commands)
    places = _ENVIRONMENT.findall(latex)
    begun = sum(c in ("begin", "end") for c in commands)
    if not known or len(places) != begun or any(p not in ENVIRONMENTS for p in places):
        return False
    bare = _COMMAND.sub(" ", latex)
    loose = "&" in bare and not places  # columns stand between begin and end
    return not loose and not re.search(r"[$%#`\\]|\^\^", bare) and _balanced(bare)


def _balanced(bare: str) -> bool:
    depth = 0
    for character in bare:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


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
    own = (e for e in vars(exceptions).values() if isinstance(e, type) and issubclass(e, Exception))
    stumbles: tuple[type[Exception], ...] = (*own, *_STUMBLES)
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
    """For each child its form: a sign after a bracket or a relation, or a sum that goes on."""
    forms: list[str | None] = []
    before = "("
    for i, child in enumerate(element):
        text = html.unescape(child.text or "") if child.tag == "mo" else ""
        sign = text in ("-", "−") and before in tuple("([,=≈+×/")
        sum_goes_on = text == "+" and i == 0  # after a break of the line
        forms.append("prefix" if sign else "infix" if sum_goes_on else None)
        before = text
    return forms


def _word(element: Element) -> str | None:
    r"""The letters of ``\mathrm{softmax}`` as one identifier, so that they are read as a word."""
    letters = [e for e in element if e.tag == "mi" and e.get("mathvariant") == "normal"]
    upright = len(letters) == len(element) and not any(map(len, letters))
    if element.tag != "mrow" or len(letters) < 2 or not upright:
        return None
    return html.escape(html.unescape("".join(letter.text or "" for letter in letters)))
