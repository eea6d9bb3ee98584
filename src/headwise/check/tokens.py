"""Split an article into tokens: numbers, names, brackets, relations.

Markdown, LaTeX, HTML tables, Python lists and printed NumPy arrays share a few kinds of token.
Every alternative of the pattern is bounded and begins differently, so that scanning is linear.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass

from headwise.check.expression_tree import MARK, BadArticle

MOST_TOKENS = 100_000
MOST_NESTING = 24

MATRICES = ("matrix", "array", "tabular")
"""An environment with one of these in its name holds a matrix; any other only aligns lines."""

_CUT = r"(?![A-Za-z])"
_RULES = (
    ("fence", r"^[ \t]{0,3}(?:`{3,}|~{3,})[^\n]*"),
    ("newline", r"\n"),
    ("space", r"[ \t\f\v\u00a0\u2000-\u200b\ufeff]+"),
    ("begin", r"\\begin\s{0,3}\{[A-Za-z]{1,16}\*?\}(?:\{[lcr| ]{1,40}\})?"),
    ("end", r"\\end\s{0,3}\{[A-Za-z]{1,16}\*?\}"),
    ("row", rf"\\\\(?:\[[0-9.]{{1,6}}\s?[a-z]{{2}}\])?|\\(?=\s|$)|\\(?:cr|tabularnewline){_CUT}"),
    (
        "skip_length",
        (
            r"(?:\\(?:hang|par)indent\s{0,2}=\s{0,2})?\d{1,6}(?:\.\d{1,6})?(?:em|ex|cm|mm|pt|px)"
            r"(?![A-Za-z0-9])|\\(?:raggedright|noindent|allowbreak|par)(?![A-Za-z])"
        ),
    ),
    ("display", r"\$\$|\\\[|\\\]"),
    (
        "rel",
        (
            r":=|={1,2}>?|->|~=|[≈≃≅≐→⇒~≡]|\\(?:approx|simeq|cong|to|rightarrow|Rightarrow|"
            rf"longrightarrow|sim|doteq|equiv){_CUT}|&(?:asymp|approx);"
        ),
    ),
    ("blocked", rf"[+-]\s?(?:∞|\\infty{_CUT}|[Ii]nf(?:inity)?{_CUT})|float\(['\"]-inf['\"]\)"),
    ("num", MARK),
    ("op", rf"\\(?:times|cdot|div|ast){_CUT}|&(?:times|minus|middot);|[+\-/×·⋅∙÷@]|\*(?!\*)"),
    (
        "skip",
        (
            r"\*\*|\\(?:left|right|big|Big|bigl|bigr|Bigl|Bigr|quad|qquad|displaystyle|hline|"
            rf"limits|nonumber|notag){_CUT}|\\[,;:!> ]|&nbsp;"
        ),
    ),
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
        kind, start = match.lastgroup or "text", match.start()
        if kind in ("space", "skip", "skip_length"):
            spaced, sign = True, -1
            continue
        if kind == "op" and _is_sign(text, match, result, spaced):
            sign = start
            continue
        kind = _tag(match.group()) if kind == "tag" else kind
        first = sign if sign >= 0 and kind == "num" else start
        result.append(
            Token(kind, text[first : match.end()], first, bisect_right(starts, first), spaced)
        )
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
    """The token kind of an HTML tag."""
    if _CELL.match(text):
        return "math" if text.startswith("</") else "pipe"
    return "newline" if _BREAK.match(text) else "math"


def pairs(tokens: list[Token]) -> dict[int, int]:
    """Map each opening bracket or environment to its end; unclosed ones are left out.

    A blank line closes everything except nested lists; nesting deeper than `MOST_NESTING` is
    ignored.
    """
    closing = {"[": "]", "(": ")", "{": "}"}
    result: dict[int, int] = {}
    stack: list[tuple[str, int]] = []
    for i, token in enumerate(tokens):
        if token.kind == "newline" and i and tokens[i - 1].kind == "newline":
            stack = stack if len(stack) > 1 and stack[0][0] == stack[1][0] == "]" else []
        elif token.kind == "begin":
            stack.append((_name(token), i))
        elif token.kind == "open":
            stack.append((closing[token.text], i))
        elif token.kind in ("close", "end") and stack:
            wanted = token.text if token.kind == "close" else _name(token)
            for back in range(1, min(len(stack), 3) + 1):
                if stack[-back][0] == wanted:
                    result[stack[-back][1]] = i
                    del stack[-back:]
                    break
        if len(stack) > MOST_NESTING:
            stack = []
    return result


def _name(token: Token) -> str:
    return token.text[token.text.index("{") + 1 : token.text.index("}")]


def is_matrix(token: Token) -> bool:
    """Whether an environment holds a matrix, rather than aligned lines."""
    return token.kind == "begin" and any(kind in token.text for kind in MATRICES)
