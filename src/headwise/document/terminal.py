"""A document as text for a terminal, and a heat map as characters."""

import math
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from headwise.document.blocks import (
    Block,
    Code,
    Document,
    Formula,
    Heading,
    HeatMap,
    Matrix,
    Notice,
    Paragraph,
    Table,
    Working,
    part,
    slices,
    width_of,
)
from headwise.document.text_format import clean, clean_lines, decimal
from headwise.lang import Lang, Text

SHADES = " ░▒▓█"
BLOCKED = "·"
LARGEST = 48
"""Cells on a side; a larger map is pooled, each cell the largest weight of its block."""

LEGEND = Text(
    "each cell a weight: '{shades}' from 0 to 1 in fifths, '{blocked}' not allowed",
    shades=SHADES,
    blocked=BLOCKED,
)


def shade(value: float) -> str:
    """The character for one weight.

    Example:
        >>> "".join(shade(v) for v in (0.0, 0.3, 0.5, 0.7, 1.0, float("nan")))
        ' ░▒▓█·'
    """
    if math.isnan(value):
        return BLOCKED
    return SHADES[min(max(int(value * len(SHADES)), 0), len(SHADES) - 1)]


def pool(values: Sequence[Sequence[float]], step: int) -> list[list[float]]:
    """The largest weight of every block of ``step`` rows and columns; NaN where all is NaN."""
    width = len(values[0]) if values else 0
    return [
        [_largest(values[i : i + step], j, step) for j in range(0, width, step)]
        for i in range(0, len(values), step)
    ]


def step_of(rows: int, columns: int) -> int:
    """How many rows and columns one cell stands for, so that the map stays small enough."""
    return max(1, math.ceil(max(rows, columns) / LARGEST))


def pooled(step: int) -> Text:
    """What a pooled map says about itself."""
    return Text("each cell is the largest weight of {step} × {step} pairs", step=step)


def _largest(rows: Sequence[Sequence[float]], start: int, step: int) -> float:
    known = [v for row in rows for v in row[start : start + step] if not math.isnan(v)]
    return max(known, default=math.nan)


LABEL = 16
"""Cells that a row label takes at most; a longer one is cut."""

_BOLD, _GREEN, _RED = "1", "32", "31"


def render(document: Document, lang: Lang = "en", *, color: bool = False, width: int = 100) -> str:
    """The document as text.

    Args:
        document: what to show; its text is not trusted.
        lang: "en" or "zh".
        color: whether to use ANSI colours; without them the text is plain.
        width: cells in a line; a wider matrix is cut into parts.
    """
    return _Terminal(lang, color, width, document.precision).document(document)


class _Terminal:
    def __init__(self, lang: Lang, color: bool, width: int, precision: int) -> None:
        self.lang, self.color, self.width, self.precision = lang, color, width, precision

    def document(self, document: Document) -> str:
        title = self.heading(Heading(document.title, 1))
        return "\n\n".join([title, *map(self.block, document.blocks)]) + "\n"

    def block(self, block: Block) -> str:
        match block:
            case Heading():
                return self.heading(block)
            case Paragraph():
                return clean(block.text.to(self.lang))
            case Formula():
                return f"  {clean(block.plain)}"
            case Matrix():
                return self.matrix(block)
            case Working():
                return "\n".join(f"  {clean(line.plain)}" for line in block.lines)
            case Table():
                return self.table(block)
            case HeatMap():
                return self.heat(block)
            case Notice():
                return self.notice(block)
            case Code():
                return "\n".join(f"    {line}" for line in clean_lines(block.source))

    def heading(self, heading: Heading) -> str:
        text = clean(heading.text.to(self.lang))
        bold = self.paint(text, _BOLD)
        if heading.level > 2:
            return f"{self.paint('▸', _BOLD)} {bold}"
        return f"{bold}\n{('═' if heading.level == 1 else '─') * cell_len(text)}"

    def notice(self, notice: Notice) -> str:
        icon, code = ("✓", _GREEN) if notice.good else ("✗", _RED)
        return self.paint(f"{icon} {clean(notice.text.to(self.lang))}", code)

    def matrix(self, matrix: Matrix) -> str:
        name, columns = clean(matrix.symbol.plain), width_of(matrix.values)
        cells = [[decimal(v, self.precision) for v in row] for row in matrix.values]
        labels = [_cut(clean(label)) for label in matrix.rows]
        heads = [_cut(clean(label)) for label in matrix.columns]
        if not columns:
            return f"{name} = []"
        wide = max(cell_len(c) for row in [*cells, heads] for c in row)
        left = max(map(cell_len, labels), default=0)
        parts = list(slices(columns, (self.width - left - 6) // (wide + 2)))
        lines = []
        for some in parts:
            note = f"  ({part(some).to(self.lang)})" if len(parts) > 1 else ""
            lines += [f"{name} ={note}", *_grid(cells, labels, heads, some, wide, left)]
        return "\n".join(lines)

    def table(self, table: Table) -> str:
        head = [clean(text.to(self.lang)) for text in table.head]
        rows = [[clean(text.to(self.lang)) for text in row] for row in table.rows]
        count = max(map(len, [head, *rows]), default=0)
        full = [[*row, *[""] * (count - len(row))] for row in [head, *rows]]
        wide = [max(cell_len(row[i]) for row in full) for i in range(count)]
        lines = ["  ".join(map(_left, row, wide)).rstrip() for row in full]
        rule = "  ".join("─" * w for w in wide)
        return "\n".join([self.paint(lines[0], _BOLD), rule, *lines[1:]])

    def heat(self, heat: HeatMap) -> str:
        step = step_of(len(heat.rows), len(heat.columns))
        values = pool(heat.values, step)
        labels = [_cut(clean(label)) for label in heat.rows[::step]]
        left = max(map(cell_len, labels), default=0)
        lines = [f"{self.paint(clean(heat.title.to(self.lang)), _BOLD)}"]
        for label, row in zip(labels, values, strict=False):
            lines.append(f"  {_left(label, left)} │{''.join(2 * shade(v) for v in row)}│")
        notes = [LEGEND, *([pooled(step)] if step > 1 else [])]
        return "\n".join([*lines, *(f"  {note.to(self.lang)}" for note in notes)])

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text


def _grid(
    cells: Sequence[Sequence[str]],
    labels: Sequence[str],
    heads: Sequence[str],
    some: range,
    wide: int,
    left: int,
) -> list[str]:
    """Some columns of a matrix as lines: labels to the left and on top, brackets at the sides."""
    lines = []
    if heads:
        line = "  ".join(_right(heads[j] if j < len(heads) else "", wide) for j in some)
        lines.append(f"  {' ' * left}   {line}".rstrip())
    for i, row in enumerate(cells):
        label = labels[i] if i < len(labels) else ""
        line = "  ".join(_right(row[j] if j < len(row) else "", wide) for j in some)
        lines.append(f"  {_left(label, left)} [ {line} ]")
    return lines


def _cut(label: str) -> str:
    return label if cell_len(label) <= LABEL else set_cell_size(label, LABEL - 1) + "…"


def _left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text
