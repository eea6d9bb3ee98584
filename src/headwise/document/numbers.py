"""How a number is written: at the document's precision, the same in every format."""

import math

FIXED_BELOW = 1e9
"""From here on a number is written with an exponent."""


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
