"""The tokens of an article, and the expressions that printed numbers form."""

import math
import re
from bisect import bisect_right
from dataclasses import dataclass

from headwise.errors import BadFile

NOISE = 1e-9  # the share of a value that float64 arithmetic may add to half a printed step

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


class BadArticle(BadFile):
    """An article that cannot be checked; `check` adds its name."""


@dataclass(frozen=True)
class Printed:
    """One printed number: its text, its line (from 1), and its offset in the article.

    ``value`` is -inf for a blocked score; ``step`` is the place of the last digit, such as 0.001,
    and 0 where the number is exact, as 1/2 is.
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
            scale = exact / 10.0 ** int(form["e"] or form["ten"])
            mantissa = f"{form['sign']}{form['whole']}{form['point'] or ''}{form['part'] or ''}"
            return f"{scale:.{places}f}" + self.text.partition(mantissa)[2]
        written = f"{exact:.{places}f}"
        return written.replace("0.", ".", 1) if not form["whole"] else written


def printed(text: str, line: int, start: int) -> Printed:
    """Read one number token.

    Raises:
        BadArticle: if its power of ten is above `MOST_POWER`.

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
        raise BadArticle(
            "line {line}: expected numbers below 1e{most_power}, got '{text}'; "
            "scale the example down",
            line=line,
            most_power=MOST_POWER,
            text=text[:40],
        )
    digits = float(f"{form['sign']}{form['whole'] or 0}.{form['part'] or 0}e{power}")
    return Printed(text, digits, 10.0 ** (power - places), line, start)


Cell = Printed | None
"""An entry: a printed number, or None where something else stands, as a symbol or dots."""


@dataclass(frozen=True)
class Grid:
    """A printed number (dims 0), vector (1) or matrix (2)."""

    rows: tuple[tuple[Cell, ...], ...]
    dims: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes; (-1, -1) where rows differ in length."""
        if len({len(row) for row in self.rows}) != 1:
            return (-1, -1)
        return (len(self.rows), len(self.rows[0]))[2 - self.dims :]

    @property
    def cells(self) -> tuple[Printed, ...]:
        """Every printed number in it."""
        return tuple(cell for row in self.rows for cell in row if cell is not None)

    @property
    def whole(self) -> bool:
        """Whether every entry is a number and all rows are of one length."""
        return self.shape != (-1, -1) and all(cell is not None for r in self.rows for cell in r)

    @property
    def values(self) -> list[list[float]]:
        """The numbers of a whole grid."""
        return [[cell.value for cell in row if cell is not None] for row in self.rows]


@dataclass(frozen=True)
class Stack:
    """Matrices in one array of three axes: one for each head."""

    grids: tuple[Grid, ...]


@dataclass(frozen=True)
class Sum:
    """Terms with their signs, 1 or -1."""

    terms: tuple[tuple[int, "Node"], ...]


@dataclass(frozen=True)
class Product:
    """Factors side by side or with a sign of multiplication between."""

    factors: tuple["Node", ...]


@dataclass(frozen=True)
class Quotient:
    """A fraction."""

    above: "Node"
    below: "Node"


@dataclass(frozen=True)
class Apply:
    """A function: "softmax", "exp", "sqrt" or "concat"."""

    name: str
    args: tuple["Node", ...]


@dataclass(frozen=True)
class Symbol:
    """A vector by its name, as a factor of a printed number."""

    name: str


Node = Symbol | Grid | Stack | Sum | Product | Quotient | Apply


def scalar(cell: Printed) -> Grid:
    """One number as a grid."""
    return Grid(((cell,),), 0)


def vector(cells: tuple[Cell, ...]) -> Grid:
    """Numbers in a row as a grid."""
    return Grid((cells,), 1)


def leaves(node: Node) -> list[Grid]:
    """Every printed array in an expression, left to right."""
    if isinstance(node, Grid):
        return [node]
    if isinstance(node, Stack):
        return list(node.grids)
    if isinstance(node, Sum):
        parts: tuple[Node, ...] = tuple(term for _, term in node.terms)
    elif isinstance(node, Product):
        parts = node.factors
    elif isinstance(node, Quotient):
        parts = (node.above, node.below)
    else:
        parts = node.args if isinstance(node, Apply) else ()
    return [leaf for part in parts for leaf in leaves(part)]


def numbers(node: Node) -> list[Printed]:
    """Every printed number in an expression, left to right."""
    return [cell for leaf in leaves(node) for cell in leaf.cells]


MOST_TOKENS = 100_000
MOST_NESTING = 24

MATRICES = ("matrix", "array", "tabular")
"""An environment with one of these in its name holds a matrix; any other only aligns lines."""

_CUT = r"(?![A-Za-z])"
_LENGTH = r"\d{1,6}(?:\.\d{1,6})?(?:em|ex|cm|mm|pt|px)(?![A-Za-z0-9])"
_RULES = (
    ("fence", r"^[ \t]{0,3}(?:`{3,}|~{3,})[^\n]*"),
    ("newline", r"\n"),
    ("space", r"[ \t\f\v\u00a0\u2000-\u200b\ufeff]+"),
    ("begin", r"\\begin\s{0,3}\{[A-Za-z]{1,16}\*?\}(?:\{[lcr| ]{1,40}\})?"),
    ("end", r"\\end\s{0,3}\{[A-Za-z]{1,16}\*?\}"),
    ("row", rf"\\\\(?:\[[0-9.]{{1,6}}\s?[a-z]{{2}}\])?|\\(?=\s|$)|\\(?:cr|tabularnewline){_CUT}"),
    ("skip_length", rf"(?:\\(?:hang|par)indent\s{{0,2}}=\s{{0,2}})?{_LENGTH}"),
    ("skip_layout", rf"\\(?:raggedright|noindent|allowbreak|par|hline|nonumber|notag){_CUT}"),
    ("display", r"\$\$|\\\[|\\\]"),
    ("rel", r":=|={1,2}>?|->|~=|[≈≃≅≐→⇒~≡]|&(?:asymp|approx);"),
    ("rel_word", rf"\\(?:approx|simeq|cong|to|[rR]ightarrow|longrightarrow|sim|doteq|equiv){_CUT}"),
    ("blocked", rf"[+-]\s?(?:∞|\\infty{_CUT}|[Ii]nf(?:inity)?{_CUT})|float\(['\"]-inf['\"]\)"),
    (
        "skip_version",
        r"(?<![\w.])v?\d{1,4}\.\d{1,4}\.\d{1,4}(?:[.+-]?[A-Za-z0-9]{1,8}){0,3}(?![\d.]*\d)",
    ),
    ("skip_date", r"(?<![\w.])(?:19|20)\d\d[-/]\d{1,2}[-/]\d{1,2}(?!\d)"),
    ("num", MARK),
    ("op", rf"\\(?:times|cdot|div|ast){_CUT}|&(?:times|minus|middot);|[+\-/×·⋅∙÷@]|\*(?!\*)"),
    ("skip", r"\*\*|\\[,;:!> ]|&nbsp;"),
    ("skip_size", rf"\\(?:left|right|[bB]ig[lr]?|q?quad|displaystyle|limits){_CUT}"),
    ("name", r"[A-Za-z\u0370-\u03ff]+[0-9]{0,3}(?![0-9.])|[A-Za-z\u0370-\u03ff]+"),
    ("word", r"[\u3400-\u9fff]+"),
    ("command", r"\\[A-Za-z]+\*?"),
    ("tag", r"</?[A-Za-z][^<>\n]{0,120}>"),
    ("open", r"[\[({]"),
    ("close", r"[\])}]"),
    ("comma", r"[,;。]"),
    ("colon", r":"),
    ("col", r"&amp;|&"),
    ("pipe", r"\|"),
    ("sub", r"\\?_"),
    ("sup", r"\^"),
    ("math", r"\$|`"),
    ("text", r"\\?."),
)
_SCAN = re.compile("|".join(f"(?P<{kind}>{rule})" for kind, rule in _RULES), re.MULTILINE)
_BEFORE_SIGN = frozenset(
    ("open", "comma", "col", "row", "op", "rel", "colon", "newline", "pipe", "begin", "display")
)
_CELL = re.compile(r"</?t[dh]\b", re.IGNORECASE)
_BREAK = re.compile(r"</?(?:tr|p|br|li|div|h[1-6])\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Token:
    """A token: kind, text, offset, line (from 1), and whether a space comes before it."""

    kind: str
    text: str
    start: int
    line: int
    spaced: bool

    @property
    def end(self) -> int:
        """The offset after the token."""
        return self.start + len(self.text)


def scan(text: str) -> list[Token]:
    """The tokens of a text, without spaces.

    Raises:
        BadArticle: if there are more than `MOST_TOKENS`.

    Example:
        >>> [t.kind for t in scan("s_{0} = -0.5")]
        ['name', 'sub', 'open', 'num', 'close', 'rel', 'num']
    """
    starts = [0, *(m.end() for m in re.finditer("\n", text))]
    result: list[Token] = []
    spaced, sign = True, -1
    for match in _SCAN.finditer(text):
        kind = (match.lastgroup or "text").partition("_")[0]
        if kind in ("space", "skip"):
            spaced, sign = True, -1
            continue
        if kind == "op" and _is_sign(text, match, result, spaced):
            sign = match.start()
            continue
        kind = _tag(match.group()) if kind == "tag" else kind
        start = sign if sign >= 0 and kind == "num" else match.start()
        line = bisect_right(starts, start)
        result.append(Token(kind, text[start : match.end()], start, line, spaced))
        spaced, sign = kind == "newline", -1
        if len(result) > MOST_TOKENS:
            raise BadArticle(
                "more than {most} words and numbers; cut out the worked example", most=MOST_TOKENS
            )
    return result


def _is_sign(text: str, match: re.Match[str], result: list[Token], spaced: bool) -> bool:
    """Whether + or - is the sign of the number after it: [1.2 -0.2], ×-0.2, = -0.2."""
    after = text[match.end() : match.end() + 1]
    if match.group() not in "+-" or not (after.isdigit() or after == "."):
        return False
    if not result or result[-1].kind in _BEFORE_SIGN:
        return True
    return spaced and result[-1].kind in ("num", "blocked", "math")


def _tag(text: str) -> str:
    if _CELL.match(text):
        return "math" if text.startswith("</") else "pipe"
    return "newline" if _BREAK.match(text) else "math"


def pairs(tokens: list[Token]) -> dict[int, int]:
    """Map each opening bracket or environment to its end; unclosed ones are left out.

    A blank line closes everything except nested lists. Nesting beyond `MOST_NESTING` is ignored.
    """
    closing = {"[": "]", "(": ")", "{": "}"}
    result: dict[int, int] = {}
    stack: list[tuple[str, int]] = []
    for i, token in enumerate(tokens):
        if token.kind == "newline" and i and tokens[i - 1].kind == "newline":
            stack = stack if len(stack) > 1 and stack[0][0] == stack[1][0] == "]" else []
        elif token.kind == "begin":
            stack.append((_environment(token), i))
        elif token.kind == "open":
            stack.append((closing[token.text], i))
        elif token.kind in ("close", "end") and stack:
            closed = token.text if token.kind == "close" else _environment(token)
            for back in range(1, min(len(stack), 3) + 1):
                if stack[-back][0] == closed:
                    result[stack[-back][1]] = i
                    del stack[-back:]
                    break
        if len(stack) > MOST_NESTING:
            stack = []
    return result


def _environment(token: Token) -> str:
    return token.text[token.text.index("{") + 1 : token.text.index("}")]


def is_matrix(token: Token) -> bool:
    """Whether an environment holds a matrix, rather than aligned lines."""
    return token.kind == "begin" and any(kind in token.text for kind in MATRICES)
