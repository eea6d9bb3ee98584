"""A number as somebody printed it, and whether it is right at the precision it was printed at."""

import math
import re
from dataclasses import dataclass

from headwise.errors import BadFile

NOISE = 1e-9
"""The share of a value that float64 arithmetic may add to half a printed step."""

MOST_POWER = 280
"""The largest power of ten that is read; 25 digits before it still make a finite number."""

BLOCKED = -1e4
"""A printed score at or below this stands for minus infinity, as in masks written with -1e9."""

MARK = (
    r"(?:\d{1,25}(?:\.\d{0,25})?|\.\d{1,25})(?:[eE][+-]?\d{1,3})?"
    r"(?:\s{0,2}(?:×|\\times|\\cdot|\*|·)\s{0,2}10\s{0,2}\^\s{0,2}"
    r"(?:\{\s{0,2}[+-]?\d{1,3}\s{0,2}\}|[+-]?\d{1,3}))?(?:\s?\\?%)?"
)
"""One unsigned number: 0.5, .5, 1e-3, 1.2×10^{-3}, 37.6%."""

_FORM = re.compile(
    r"(?P<sign>[+-]?)\s*(?P<whole>\d*)(?:(?P<point>\.)(?P<part>\d*))?(?:[eE](?P<e>[+-]?\d+))?"
    r"(?:[^\d%]+10\s*\^\s*\{?\s*(?P<ten>[+-]?\d+)\s*\}?)?\s*(?P<percent>\\?%)?"
)


@dataclass(frozen=True)
class Printed:
    """One printed number.

    Attributes:
        text: as it stands in the article.
        value: what it says; -inf for a blocked score.
        step: the place of its last digit, such as 0.001; 0 where it is exact, as 1/2 is.
        line: the line it stands in, from 1.
        start: its offset in the article.
    """

    text: str
    value: float
    step: float
    line: int
    start: int

    def right(self, exact: float, slack: float = 0.0) -> bool:
        """Whether this is the exact value rounded to the printed step; a tie may go either way.

        ``slack`` is how far the exact value may be off, as its inputs were printed rounded.
        """
        if math.isinf(exact):
            return self.value == exact or (exact < 0 and self.value <= BLOCKED)
        if math.isinf(self.value):
            return False
        return abs(self.value - exact) <= slack + self.step / 2 + NOISE * max(1.0, abs(exact))

    def corrected(self, exact: float) -> str:
        """The exact value written as this number is written."""
        if not math.isfinite(exact):
            return str(exact)
        form = _FORM.fullmatch(self.text)
        if form is None or self.step == 0:
            return f"{exact:.6g}"
        places = len(form["part"] or "")
        if form["percent"]:
            return f"{exact * 100:.{places}f}{form['percent']}"
        if form["e"] or form["ten"]:
            power = int(form["e"] or form["ten"])
            scale = exact / 10.0**power
            return f"{scale:.{places}f}" + self.text[self.text.index(_after(form)) :]
        written = f"{exact:.{places}f}"
        return written.replace("0.", ".", 1) if not form["whole"] else written


def _after(form: re.Match[str]) -> str:
    """What follows the mantissa: the exponent as it was written."""
    mantissa = f"{form['sign']}{form['whole']}{form['point'] or ''}{form['part'] or ''}"
    return form.group(0)[form.group(0).index(mantissa) + len(mantissa) :]


def printed(text: str, line: int, start: int) -> Printed:
    """Read one number token.

    Raises:
        BadFile: if its power of ten is above `MOST_POWER`.

    Example:
        >>> printed("37.6%", 1, 0).right(0.3764)
        True
        >>> printed(".201", 1, 0).right(0.200474), printed(".201", 1, 0).corrected(0.200474)
        (False, '.200')
    """
    form = _FORM.fullmatch(text)
    if form is None or not (form["whole"] or form["part"]):
        return Printed(text, -math.inf, 0.0, line, start)
    places = len(form["part"] or "")
    power = int(form["e"] or 0) + int(form["ten"] or 0) - (2 if form["percent"] else 0)
    if power > MOST_POWER:
        raise BadFile(
            "FILE: line {line}: expected numbers below 1e{most_power}, got '{text}'; "
            "scale the example down",
            line=line,
            most_power=MOST_POWER,
            text=text[:40],
        )
    digits = float(f"{form['sign']}{form['whole'] or 0}.{form['part'] or 0}e{power}")
    return Printed(text, digits, 10.0 ** (power - places), line, start)
