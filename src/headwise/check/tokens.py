"""The small pieces of an article: numbers, names, brackets, relations. One pass, linear in length.

Markdown, LaTeX, HTML tables, Python lists and numpy's prints all come down to the same few kinds of
piece. Every alternative of the pattern is bounded and begins differently, so no text can
make the scan slow.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass

from headwise.check.numbers import MARK
from headwise.errors import BadFile

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
    """One piece: its kind, its text, where it starts, its line, and whether a space is before."""

    kind: str
    text: str
    start: int
    line: int
    spaced: bool

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.start + len(self.text)


def scan(text: str) -> list[Token]:
    """Every piece of the text in order, spaces left out.

    Raises:
        BadFile: if there are more pieces than a worked example can have.

    Example:
        >>> [t.kind for t in scan("s_{0} = -0.5")]
        ['name', 'sub', 'open', 'num', 'close', 'rel', 'num']
    """
    starts = [0, *(m.end() for m in re.finditer("\n", text))]
    found: list[Token] = []
    spaced, sign = True, -1
    for match in _SCAN.finditer(text):
        kind, start = match.lastgroup or "text", match.start()
        if kind in ("space", "skip", "skip_length"):
            spaced, sign = True, -1
            continue
        if kind == "op" and _is_sign(text, match, found, spaced):
            sign = start
            continue
        kind = _tag(match.group()) if kind == "tag" else kind
        first = sign if sign >= 0 and kind == "num" else start
        found.append(
            Token(kind, text[first : match.end()], first, bisect_right(starts, first), spaced)
        )
        spaced, sign = kind == "newline", -1
        if len(found) > MOST_TOKENS:
            raise BadFile(
                "FILE: more than {most_tokens} words and numbers; cut out the worked example",
                most_tokens=MOST_TOKENS,
            )
    return found


def _is_sign(text: str, match: re.Match[str], found: list[Token], spaced: bool) -> bool:
    """Whether a + or - belongs to the number right after it: [1.2 -0.2], ×-0.2, = -0.2."""
    after = text[match.end() : match.end() + 1]
    if match.group() not in "+-" or not (after.isdigit() or after == "."):
        return False
    if not found or found[-1].kind in _BEFORE_SIGN:
        return True
    return spaced and found[-1].kind in ("num", "blocked", "math")


def _tag(text: str) -> str:
    """An HTML tag as the piece it stands for."""
    if _CELL.match(text):
        return "math" if text.startswith("</") else "pipe"
    return "newline" if _BREAK.match(text) else "math"


def pairs(tokens: list[Token]) -> dict[int, int]:
    """Where each bracket or environment that opens is closed; what is never closed is left out.

    A blank line closes everything except lists of lists, and nesting beyond what mathematics
    uses is given up.
    """
    closing = {"[": "]", "(": ")", "{": "}"}
    found: dict[int, int] = {}
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
                    found[stack[-back][1]] = i
                    del stack[-back:]
                    break
        if len(stack) > MOST_NESTING:
            stack = []
    return found


def _name(token: Token) -> str:
    return token.text[token.text.index("{") + 1 : token.text.index("}")]


def is_matrix(token: Token) -> bool:
    """Whether an environment holds a matrix, rather than aligned lines."""
    return token.kind == "begin" and any(kind in token.text for kind in MATRICES)
