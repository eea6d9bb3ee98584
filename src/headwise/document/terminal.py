"""A document as text for a terminal, and a heat map as characters."""

import math
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from headwise.document import blocks
from headwise.document.text_format import clean, clean_lines, decimal, prose
from headwise.lang import Lang, Text

SHADES = " ░▒▓█"
BLOCKED = "·"
LARGEST = 48  # cells on a side; a larger map is pooled, each cell the largest weight of its block

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
    """The largest weight of every block of ``step`` rows and columns; NaN where all are NaN."""
    width = len(values[0]) if values else 0
    return [
        [_largest(values[i : i + step], j, step) for j in range(0, width, step)]
        for i in range(0, len(values), step)
    ]


def _largest(rows: Sequence[Sequence[float]], start: int, step: int) -> float:
    weights = [v for row in rows for v in row[start : start + step] if not math.isnan(v)]
    return max(weights, default=math.nan)


def drawn(heat: blocks.HeatMap) -> tuple[list[tuple[str, str]], list[Text]]:
    """The rows of a pooled heat map as (label, characters), and its legend."""
    step = max(1, math.ceil(max(len(heat.rows), len(heat.columns)) / LARGEST))
    cells = ("".join(2 * shade(weight) for weight in row) for row in pool(heat.values, step))
    rows = list(zip(map(clean, heat.rows[::step]), cells, strict=False))
    note = Text("each cell is the largest weight of {step} × {step} pairs", step=step)
    return rows, [LEGEND, note] if step > 1 else [LEGEND]


MARK = "◂"  # beside the row of a matrix that the text is about

LABEL = 16  # cells that a row label takes at most; a longer one is cut

_BOLD, _GREEN, _RED = "1", "32", "31"


def render(
    document: blocks.Document, lang: Lang = "en", *, color: bool = False, width: int = 100
) -> str:
    """The document as text; its text is not trusted.

    ``color`` uses ANSI colours; a matrix wider than ``width`` cells is cut into parts.
    """
    writer = _Terminal(lang, color, width, document.precision)
    title = writer.heading(blocks.Heading(document.title, 1))
    return "\n\n".join([title, *map(writer.block, document.blocks)]) + "\n"


class _Terminal:
    def __init__(self, lang: Lang, color: bool, width: int, precision: int) -> None:
        self.lang, self.color, self.width, self.precision = lang, color, width, precision

    def block(self, block: blocks.Block) -> str:
        match block:
            case blocks.Heading():
                return self.heading(block)
            case blocks.Paragraph():
                return prose(block.text, self.lang)
            case blocks.Formula():
                return f"  {clean(block.plain)}"
            case blocks.Matrix() | blocks.SideBySide():
                return "\n".join(map(self.matrix, blocks.matrices_of(block)))
            case blocks.Working():
                return "\n".join(f"  {clean(line.plain)}" for line in block.lines)
            case blocks.Table():
                return self.table(block)
            case blocks.HeatMap():
                return self.heat(block)
            case blocks.Notice():
                icon, code = ("✓", _GREEN) if block.good else ("✗", _RED)
                return self.paint(f"{icon} {clean(block.text.to(self.lang))}", code)
            case blocks.Code():
                return "\n".join(f"    {line}" for line in clean_lines(block.source))

    def heading(self, heading: blocks.Heading) -> str:
        text = prose(heading.text, self.lang)
        bold = self.paint(text, _BOLD)
        if heading.level > 2:
            return f"{self.paint('▸', _BOLD)} {bold}"
        return f"{bold}\n{('═' if heading.level == 1 else '─') * cell_len(text)}"

    def matrix(self, matrix: blocks.Matrix) -> str:
        name, columns = clean(matrix.symbol.plain), max(map(len, matrix.values), default=0)
        cells = [[decimal(v, self.precision) for v in row] for row in matrix.values]
        if not columns:
            return f"{name} = []"
        heads = [_cut(clean(label)) for label in matrix.columns]
        labels = [_cut(clean(label)) for label in matrix.rows]
        labels += [""] * (len(cells) - len(labels))
        wide = max(cell_len(c) for row in [*cells, heads] for c in row)
        left = max(map(cell_len, labels), default=0)
        parts = list(blocks.slices(columns, (self.width - left - 6) // (wide + 2)))
        lines = []
        for some in parts:
            note = f"  ({blocks.part(some).to(self.lang)})" if len(parts) > 1 else ""
            lines.append(f"{name} ={note}")
            if heads:
                lines.append(f"  {' ' * left}   {_cells(heads, some, wide)}".rstrip())
            for i, (label, row) in enumerate(zip(labels, cells, strict=False)):
                mark = f" {MARK}" if i == matrix.marked else ""
                lines.append(f"  {_left(label, left)} [ {_cells(row, some, wide)} ]{mark}")
        return "\n".join(lines)

    def table(self, table: blocks.Table) -> str:
        head = [clean(text.to(self.lang)) for text in table.head]
        rows = [[clean(text.to(self.lang)) for text in row] for row in table.rows]
        count = max(map(len, [head, *rows]), default=0)
        full = [[*row, *[""] * (count - len(row))] for row in [head, *rows]]
        wide = [max(cell_len(row[i]) for row in full) for i in range(count)]
        lines = ["  ".join(map(_left, row, wide)).rstrip() for row in full]
        rule = "  ".join("─" * w for w in wide)
        return "\n".join([self.paint(lines[0], _BOLD), rule, *lines[1:]])

    def heat(self, heat: blocks.HeatMap) -> str:
        rows, notes = drawn(heat)
        labels = [_cut(label) for label, _ in rows]
        left = max(map(cell_len, labels), default=0)
        lines = [self.paint(clean(heat.title.to(self.lang)), _BOLD)]
        for label, (_, cells) in zip(labels, rows, strict=True):
            lines.append(f"  {_left(label, left)} │{cells}│")
        return "\n".join([*lines, *(f"  {note.to(self.lang)}" for note in notes)])

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text


def _cells(texts: Sequence[str], some: range, wide: int) -> str:
    """The texts of some columns, aligned to the right; empty where a row ends before them."""
    padded = (texts[j] if j < len(texts) else "" for j in some)
    return "  ".join(" " * (wide - cell_len(text)) + text for text in padded)


def _cut(label: str) -> str:
    return label if cell_len(label) <= LABEL else set_cell_size(label, LABEL - 1) + "…"


def _left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
