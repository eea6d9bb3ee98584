"""Cut an article into the lines a person sees: a formula over many lines is one line."""

from dataclasses import dataclass

from headwise.check.tokens import Token, is_matrix, pairs, scan

_ALIGNED = ("equation", "align", "gather", "split", "cases", "eqnarray", "multline", "math")
_SECTIONS = {"\\section": 1, "\\subsection": 2, "\\subsubsection": 3, "\\paragraph": 4}


@dataclass(frozen=True)
class Line:
    """One line as it is read.

    Attributes:
        tokens: its pieces, without line breaks outside arrays.
        heading: 0, or the level of the heading it is.
        code: whether it stands in a code block.
    """

    tokens: tuple[Token, ...]
    heading: int = 0
    code: bool = False

    def count(self, kind: str) -> int:
        """How many pieces of one kind stand outside brackets."""
        return sum(token.kind == kind for token in self.tokens)


def cut(text: str) -> list[Line]:
    """The lines of an article in order."""
    tokens = scan(text)
    return _joined(_Cutter(tokens).run())


class _Cutter:
    """Walks the tokens once and closes a line where a reader would."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.pair = tokens, pairs(tokens)
        self.lines: list[Line] = []
        self.current: list[Token] = []
        self.code = self.display = False

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
            self.current.append(token)
        return i + 1

    def _close(self, *, keep: bool = False) -> None:
        """End the line; in a formula that goes on, what is shown stays one formula."""
        tokens, self.current = self.current, []
        self.display = self.display and keep
        if not tokens:
            return
        level = 0
        while level < len(tokens) and tokens[level].text == "#" and not self.code:
            level += 1
        if tokens[0].text.rstrip("*") in _SECTIONS:
            level, tokens = _SECTIONS[tokens[0].text.rstrip("*")], [tokens[0], *tokens]
            tokens = [*[tokens[0]] * level, *tokens[2:]]
        tokens = _unmarked(tokens[level:])
        if tokens:
            self.lines.append(Line(tuple(tokens), level, self.code))


def _unmarked(tokens: list[Token]) -> list[Token]:
    """Without the mark of a list or a quotation, and without the number of a list or a section."""
    while tokens and tokens[0].text in ("-", "*", "+", "•", ">", "#", "·"):
        tokens = tokens[1:]
    if len(tokens) < 2 or tokens[0].kind != "num":
        return tokens
    head, after = tokens[0], tokens[1]
    listed = after.text in (")", ",") and after.kind != "num" and not after.spaced
    numbered = head.text.endswith(".") and after.spaced and after.kind in ("name", "word", "math")
    section = _section(head.text) and after.kind in ("name", "word")
    if listed and len(tokens) > 2 and tokens[2].kind in ("name", "word", "math", "command"):
        return tokens[2:]
    return tokens[1:] if numbered or section else tokens


def _section(text: str) -> bool:
    return text.replace(".", "", 2).isdigit() and len(text) <= 4


def is_array_row(line: Line) -> bool:
    """Whether a line is one row of a table or of a block of numbers."""
    if line.count("pipe") >= 2 or line.tokens[0].kind == "pipe":
        return True
    return len(line.tokens) > 1 and all(t.kind in ("num", "blocked", "comma") for t in line.tokens)


def _joined(lines: list[Line]) -> list[Line]:
    """With a formula that goes on in the next line put together: ``= ..`` or ``.. =``."""
    found: list[Line] = []
    for line in lines:
        before = found[-1] if found else None
        if before is None or line.heading or before.heading or not line.tokens:
            found.append(line)
        elif line.tokens[0].kind == "rel" or (
            before.tokens[-1].kind == "rel" and not is_array_row(line)
        ):
            found[-1] = Line(before.tokens + line.tokens, 0, line.code)
        else:
            found.append(line)
    return found
