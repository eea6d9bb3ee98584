r"""LaTeX that may be written into a document: only mathematics, never a command that acts.

A formula can come to hold text that somebody else wrote. What is not on the lists below
(``\input``, ``\write``, ``\href``, ``\def`` and all the rest) is not written as LaTeX; the renderer
then shows the formula's plain text, escaped.
"""

import re

from headwise.document.blocks import Formula
from headwise.document.plain import clean

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
