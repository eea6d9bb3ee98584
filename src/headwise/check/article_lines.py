"""Read an article and cut it into logical lines: a formula over many lines is one."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from headwise.check.expression_tree import Token, is_matrix, pairs, scan
from headwise.document import reading

_ALIKE: dict[int, int] = str.maketrans(
    "０１２３４５６７８９．，；：＝＋－−–×＊／（）［］｛｝｜％＿＾～“”　、⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉",
    '0123456789.,;:=+---×*/()[]{}|%_^~"" ,01234567890123456789',
)
_ALIKE |= {0xFF21 + i: 0x41 + i for i in range(58) if chr(0x41 + i).isalpha()}
_TITLE = re.compile(r"<h([1-6])\b[^<>\n]{0,80}>", re.IGNORECASE)
_COMMENT = re.compile(
    r"(?m)(?:(?<=[\],;])|(?<=\d,)|(?<=\d\]))[ \t]{0,20}(?:#|//)[ \t]?[^\n\]\[]{0,100}$|"
    r"(?<=\\\\)[ \t]{0,9}%[^\n]{0,100}$"
)
"""A comment after a row of numbers."""
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹", "₀₁₂₃₄₅₆₇₈₉"


def read_article(path: Path) -> str:
    """The text of an article in any format of `headwise.document.reading`; ``-`` is stdin.

    Raises:
        BadFile: if it cannot be read, or is too long.
    """
    return reading.read_article(path).text


def normalized(text: str) -> str:
    """The text with full-width digits and signs as ASCII, and sub- and superscripts in braces.

    Example:
        >>> normalized("s₀₁ ＝ −0.5")
        's_{01} = -0.5'
    """
    text = _COMMENT.sub("", text)
    text = _TITLE.sub(lambda match: "#" * int(match[1]) + " ", text)
    text = re.sub(f"[{_RAISED}]+", lambda digits: f"^{{{digits[0]}}}", text)
    text = re.sub(f"[{_LOWERED}]+", lambda digits: f"_{{{digits[0]}}}", text)
    return _with_points(text.translate(_ALIKE))


_COMMA = re.compile(r"(?<![\d.,])(\d{1,4}),(\d{1,6})(?!\d|,\d)")
_COMMA_SURE = re.compile(r"(?<![\d.,])\d{1,3},\d{2,4}(?!\d|,\d)")


def _with_points(text: str) -> str:
    """With decimal commas made points, where an article writes its decimals so."""
    commas = sum(1 for _ in _COMMA_SURE.finditer(text))
    points = sum(1 for _ in re.finditer(r"\d\.\d{2}", text))
    return _COMMA.sub(r"\1.\2", text) if commas >= 4 and commas > 2 * points else text


_WORDS = frozenset(("name", "word", "math", "command"))
_ALIGNED = ("equation", "align", "gather", "split", "cases", "eqnarray", "multline", "math")
_SECTIONS = {"\\section": 1, "\\subsection": 2, "\\subsubsection": 3, "\\paragraph": 4}


@dataclass(frozen=True)
class Line:
    """One line: its tokens, the level of the heading it is, or 0, and whether it is code.

    ``block`` counts the fences before it.
    """

    tokens: tuple[Token, ...]
    heading: int = 0
    code: bool = False
    block: int = 0


def logical_lines(text: str) -> list[Line]:
    """The lines of an article in order."""
    return _joined(_Cutter(scan(text)).run())


class _Cutter:
    """Walks the tokens once and closes a line where a reader would."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.pair = tokens, pairs(tokens)
        self.lines: list[Line] = []
        self.current: list[Token] = []
        self.code = self.display = False
        self.block = 0

    def run(self) -> list[Line]:
        i = 0
        while i < len(self.tokens):
            i = self._step(i)
        self._close()
        return self.lines

    def _step(self, i: int) -> int:
        token = self.tokens[i]
        if i in self.pair and (token.kind == "open" or is_matrix(token)):
            self.current.extend(self.tokens[i : self.pair[i] + 1])
            return self.pair[i] + 1
        if token.kind == "fence":
            self._close()
            self.code, self.display = not self.code, False
            self.block += 1
        elif token.kind == "newline":
            blank = i > 0 and self.tokens[i - 1].kind == "newline"
            if not self.display or blank:
                self._close()
        elif token.kind == "row" and self.current and self.current[0].kind == "pipe":
            pass  # the corner of a table, as in | query \\ key |
        elif token.kind in ("row", "display"):
            opens = token.text in ("$$", "\\[") and not self.display
            if token.kind == "row" or not opens:
                self._close(keep=token.kind == "row")
            self.display = self.display if token.kind == "row" else opens
        elif token.kind in ("begin", "end"):
            self.display = token.kind == "begin" and any(kind in token.text for kind in _ALIGNED)
        elif token.kind != "col" or not self.display:
            self.current += self._sentence_end(i) or [token]
        return i + 1

    def _sentence_end(self, i: int) -> list[Token]:
        """``Example 1. X``: a whole number and the full stop after it, as two tokens."""
        token = self.tokens[i]
        after = self.tokens[i + 1] if i + 1 < len(self.tokens) else None
        ends = after is None or after.kind == "newline" or (after.spaced and after.kind in _WORDS)
        if not self.current or token.kind != "num" or not ends or not token.text[:-1].isdigit():
            return []
        if not token.text.endswith("."):
            return []
        number = replace(token, text=token.text[:-1])
        return [number, Token("comma", "。", number.end, token.line, False)]

    def _close(self, *, keep: bool = False) -> None:
        """End the line; in a formula that goes on, what is shown stays one formula."""
        tokens, self.current = self.current, []
        self.display = self.display and keep
        if not tokens:
            return
        marks = 0
        while marks < len(tokens) and tokens[marks].text == "#" and not self.code:
            marks += 1
        level = marks
        if tokens[0].text.rstrip("*") in _SECTIONS:
            level, marks = _SECTIONS[tokens[0].text.rstrip("*")], 1
        tokens = _unmarked(tokens[marks:])
        if tokens:
            self.lines.append(Line(tuple(tokens), level, self.code, self.block))


def _unmarked(tokens: list[Token]) -> list[Token]:
    """Without the mark of a list or a quotation, and without the number of a list or a section."""
    marks = 0
    while marks < len(tokens) and tokens[marks].text in ("-", "*", "+", "•", ">", "#", "·"):
        marks += 1
    tokens = tokens[marks:]
    if len(tokens) < 2 or tokens[0].kind != "num":
        return tokens
    head, after = tokens[0], tokens[1]
    listed = after.text in (")", ",") and after.kind != "num" and not after.spaced
    numbered = head.text.endswith(".") and after.spaced and after.kind in ("name", "word", "math")
    digits = head.text.replace(".", "", 2).isdigit() and len(head.text) <= 4
    section = digits and after.kind in ("name", "word")
    if listed and len(tokens) > 2 and tokens[2].kind in ("name", "word", "math", "command"):
        return tokens[2:]
    return tokens[1:] if numbered or section else tokens


def is_table_row(line: Line) -> bool:
    """Whether a line is one row of a table."""
    kinds = [token.kind for token in line.tokens]
    return kinds.count("pipe") >= 2 or kinds[0] == "pipe"


def is_array_row(line: Line) -> bool:
    """Whether a line is one row of a table or of a block of numbers."""
    numbers = all(token.kind in ("num", "blocked", "comma") for token in line.tokens)
    return is_table_row(line) or (numbers and len(line.tokens) > 1)


def _joined(lines: list[Line]) -> list[Line]:
    """With a formula that goes on in the next line put together: ``= ..`` or ``.. =``."""
    result: list[Line] = []
    for line in lines:
        before = result[-1] if result else None
        goes_on = line.tokens[0].kind == "rel" or (
            before is not None and before.tokens[-1].kind == "rel" and not is_array_row(line)
        )
        if before is None or line.heading or before.heading or not goes_on:
            result.append(line)
        else:
            result[-1] = replace(before, tokens=before.tokens + line.tokens)
    return result
