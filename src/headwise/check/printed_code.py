"""What the code of an article prints: the label of an array that a program printed without one."""

import re
from collections import deque
from dataclasses import replace

from headwise.check.article_lines import Line
from headwise.check.equations import Equation
from headwise.check.label_patterns import composite, plain
from headwise.check.labels import Hint

_PRINT = re.compile(r"\b(?:print|display|disp|pprint)\s?\(([^\n;]{1,160}?)\)(?=\s*(?:;|$|\n|#))")
_STRING = re.compile(r"""(?:[fr]?"[^"\n]{0,80}"|[fr]?'[^'\n]{0,80}')\s?,?""")
_BARE = re.compile(r"^[A-Za-z_][\w.]{0,30}(?:\s?[@*+]\s?[A-Za-z_][\w.]{0,30})?$")
_ASSIGNED = re.compile(r"(?<![\w.])([A-Za-z_]\w{0,30})\s?=\s?([^=\n#;]{3,160})")
_CODE = re.compile(r"\bprint\s?\(|\bimport\s|^\s*[A-Za-z_]\w*\s?=\s?.*[\w)]\(|^[A-Za-z_]\w*$", re.M)


_PROGRAM = re.compile(
    r"^\s*(?:>>>|>>|In \[)|\bprint\s?\(|\b(?:np|torch|plt|sns|nn|F|math)\.\w|\*\*|\s@\s|\.T\b|"
    r"\bimport\s|\bdef\s|\breturn\b|\brange\(|\w\(\w+(?:=|, ?dim)"
)


def is_code(source: str, *, fenced: bool) -> bool:
    """Whether a line is code, whose numbers are arguments.

    Example:
        >>> is_code("S = Q @ K.T / 2 ** 0.5", fenced=True), is_code("S = [[1, 2]]", fenced=True)
        (True, False)
    """
    match = _PROGRAM.search(source)
    return match is not None and (fenced or match.group().strip() in (">>>", ">>", "In ["))


class PrintedCode:
    """Follows the fences of an article: which arrays a block of code prints, in order."""

    def __init__(self) -> None:
        self.block = -1
        self.pending: deque[str] = deque()
        self.text = ""
        self.meanings: dict[str, tuple[str, ...]] = {}

    def enter(self, line: Line, text: str) -> None:
        """Take note of a line; a new block of code says what the block after it prints."""
        source = text[line.tokens[0].start : line.tokens[-1].end]
        for name, formula in _ASSIGNED.findall(source):
            keys = composite(plain(formula))
            if keys and len(name) > 1:
                self.meanings[name] = keys
        if line.block == self.block:
            self.text += "\n" + source if line.code else ""
            return
        previous, self.block = self.text, line.block
        self.text = source if line.code else ""
        if line.code:
            self.pending = deque(_printed(previous)) if previous else deque()
        elif not _CODE.search(previous):
            self.text = ""
        else:
            self.text = previous

    def next_label(self) -> str | None:
        """What the next array without a label was printed from."""
        return self.pending.popleft() if self.pending else None

    def defined(self, own: Hint, equation: Equation) -> Hint:
        """A label that is a variable, with the meaning of the formula that it was given."""
        name = " ".join(equation.labels).strip(" `:=*$")
        keys = self.meanings.get(name)
        shared = tuple(key for key in keys or () if key in own.keys)
        return replace(own, keys=shared) if shared else own


def _printed(source: str) -> list[str]:
    """The expressions that a block of code prints, without strings and shapes."""
    result = []
    for match in _PRINT.finditer(source):
        inside = _STRING.sub("", match[1]).strip()
        if inside and ".shape" not in inside and not match[1].startswith(("torch.__", "np.__")):
            result.append(inside)
    last = source.strip().rsplit("\n", 1)[-1].strip()
    if _BARE.match(last):
        result.append(last)
    return result
