"""Formatting of text and numbers, the same in every format of a document."""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

from headwise.lang import Lang, Text, Translated


def clean(text: str) -> str:
    r"""The text on one line, without control characters.

    Control characters become their pictures; invisible format characters, such as those that set
    the writing direction, become their numbers; half a surrogate pair becomes the replacement
    character. Joiners stay: emoji and several scripts need them.

    Example:
        >>> clean("a\x1b[31mb\u202ec")
        'a␛[31mb\\u202ec'
    """
    return "".join(_harmless(character) for character in text)


def spans(text: Text, lang: Lang) -> list[tuple[str, bool]]:
    r"""The pieces of a message, and whether each is a formula in LaTeX.

    A formula stands between dollar signs in the message's template; a dollar sign in a value is
    one, so that what a person wrote is never a formula.

    Example:
        >>> spans(Text("$d_k$ is {n}", n="$2$"), "en")
        [('d_k', True), (' is $2$', False)]
    """
    pieces = [text.to(lang)] if isinstance(text, Translated) else text.template(lang).split("$")
    if len(pieces) % 2 == 0 or len(pieces) == 1:
        return [(text.to(lang), False)]
    return [(text.filled(piece, lang), i % 2 == 1) for i, piece in enumerate(pieces) if piece]


def plain_math(latex: str) -> str:
    r"""A short formula for a terminal.

    Example:
        >>> plain_math(r"\sqrt{d_k}"), plain_math("X_{kv}")
        ('√d_k', 'X_kv')
    """
    signs = latex.replace("\\sqrt", "√").replace("\\approx", "≈")
    return re.sub(r"\{([^{}]*)\}", r"\1", signs)


def prose(text: Text, lang: Lang) -> str:
    """A message for a terminal, on one line and clean."""
    return "".join(
        plain_math(piece) if formula else clean(piece) for piece, formula in spans(text, lang)
    )


def clean_lines(text: str) -> list[str]:
    """The lines of a text without control characters; a tab becomes four spaces."""
    return [clean(line.replace("\t", "    ")) for line in text.splitlines()]


def _harmless(character: str) -> str:
    code, kind = ord(character), unicodedata.category(character)
    if kind not in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in "\u200c\u200d":
        return character
    if character == "\n":
        return " "
    if kind == "Cs":
        return "\ufffd"
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\\u{code:04x}"


FIXED_BELOW = 1e9  # from here on a number is written with an exponent


def decimal(value: float, precision: int) -> str:
    """The number with ``precision`` decimals; a zero has no sign.

    Example:
        >>> decimal(-0.00001, 3), decimal(float("-inf"), 3), decimal(2.5e12, 1)
        ('0.000', '-inf', '2.5e+12')
    """
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    kind = "f" if abs(value) < FIXED_BELOW else "e"
    text = f"{value:.{precision}{kind}}"
    return text.lstrip("-") if not float(text) else text


def latex(value: float, precision: int) -> str:
    r"""The number for a formula.

    Example:
        >>> latex(float("-inf"), 3), latex(2.5e12, 1)
        ('-\\infty', '2.5 \\times 10^{12}')
    """
    text = decimal(value, precision)
    if not math.isfinite(value):
        return {"nan": r"\mathrm{nan}", "inf": r"\infty", "-inf": r"-\infty"}[text]
    digits, _, exponent = text.partition("e")
    return rf"{digits} \times 10^{{{int(exponent)}}}" if exponent else digits


def bmatrix(rows: Iterable[Sequence[float]], precision: int) -> str:
    """Numbers as a LaTeX matrix, one row a line."""
    lines = (" & ".join(latex(value, precision) for value in row) for row in rows)
    return "\\begin{bmatrix}\n" + "".join(f"{line} \\\\\n" for line in lines) + "\\end{bmatrix}"


def typeset(value: float, precision: int) -> str:
    """The number with typographic signs, for a page.

    Example:
        >>> typeset(-1.5, 1), typeset(float("-inf"), 1)
        ('−1.5', '−∞')
    """
    return decimal(value, precision).replace("-", "−").replace("inf", "∞")


def share(value: float) -> str:
    """A weight from 0 to 1 as a short percentage; a pair that is not allowed is a dot.

    Example:
        >>> share(0.376), share(0.0004), share(float("nan"))
        ('38', '0', '·')
    """
    return "·" if math.isnan(value) else f"{100 * value:.0f}"
