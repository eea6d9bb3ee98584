"""A document as Markdown: mathematics as LaTeX, everything else escaped."""

import re

from headwise.document import terminal, text_format
from headwise.document.blocks import (
    Block,
    Code,
    Document,
    Formula,
    Heading,
    HeatMap,
    Labels,
    Matrix,
    Notice,
    Paragraph,
    Table,
    Working,
)
from headwise.document.formulas import math
from headwise.document.text_format import clean, clean_lines
from headwise.lang import Lang, Text

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def render(document: Document, lang: Lang = "en") -> str:
    """The document as Markdown with ``$$`` formulas; its text is not trusted."""
    writer = _Markdown(lang, document.precision)
    blocks = [Heading(document.title, 1), *document.blocks]
    return "\n\n".join(map(writer.block, blocks)) + "\n"


def escape(text: str) -> str:
    r"""Plain text in which nothing is read as Markdown, HTML, mathematics, a link or a mention.

    Example:
        >>> escape("*a* <b> $c$ http://d")
        '\\*a\\* &lt;b&gt; \\$c\\$ http\\://d'
    """
    marked = re.sub(r"([\\`*_\[\]|~$@])", r"\\\1", clean(text))
    marked = re.sub(r"^(\s*)([-+#=>])", r"\1\\\2", marked)
    marked = re.sub(r"^(\s*\d+)([.)])", r"\1\\\2", marked)
    unlinked = re.sub(r"(?i)\b(https?|ftp|mailto|xmpp):", r"\1\\:", marked)
    unlinked = re.sub(r"(?i)\b(www)\.", r"\1\\.", unlinked)
    return unlinked.translate(_ENTITIES)


class _Markdown:
    def __init__(self, lang: Lang, precision: int) -> None:
        self.lang, self.precision, self.labels = lang, precision, Labels()

    def block(self, block: Block) -> str:
        match block:
            case Heading():
                return f"{'#' * min(max(block.level, 1), 6)} {self.say(block.text)}"
            case Paragraph():
                return self.say(block.text)
            case Formula():
                return _display(block)
            case Matrix():
                return self.matrix(block)
            case Working():
                return "\n".join(f"- {_inline(line)}" for line in block.lines)
            case Table():
                return self.table(block)
            case HeatMap():
                return self.heat(block)
            case Notice():
                return f"> **{'✓' if block.good else '✗'}** {self.say(block.text)}"
            case Code():
                return _fence(block.source, re.sub(r"\W", "", block.language))

    def say(self, text: Text) -> str:
        return escape(text.to(self.lang))

    def matrix(self, matrix: Matrix) -> str:
        name = math(matrix.symbol)
        rows = [
            " & ".join(text_format.latex(v, self.precision) for v in row) for row in matrix.values
        ]
        body = "\\begin{bmatrix}\n" + "".join(f"{row} \\\\\n" for row in rows) + "\\end{bmatrix}"
        shown = f"$$\n{f'{name} = ' if name else ''}{body}\n$$"
        spoken = [] if name else [f"{escape(matrix.symbol.plain)} ="]
        labels = self.labels.new(matrix)
        return "\n\n".join([*([self.say(labels)] if labels else []), *spoken, shown])

    def table(self, table: Table) -> str:
        rows = [[self.say(text) or " " for text in row] for row in [table.head, *table.rows]]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], f"|{' --- |' * len(table.head)}", *lines[1:]])

    def heat(self, heat: HeatMap) -> str:
        step = terminal.step_of(len(heat.rows), len(heat.columns))
        values = terminal.pool(heat.values, step)
        lines = [
            f"|{''.join(2 * terminal.shade(v) for v in row)}| {clean(label)}"
            for label, row in zip(heat.rows[::step], values, strict=False)
        ]
        notes = [terminal.LEGEND, *([terminal.pooled(step)] if step > 1 else [])]
        title = f"**{self.say(heat.title)}**"
        return "\n\n".join([title, _fence("\n".join(lines), ""), *map(self.say, notes)])


def _display(formula: Formula) -> str:
    latex = math(formula)
    return f"$$\n{latex}\n$$" if latex else escape(formula.plain)


def _inline(formula: Formula) -> str:
    latex = math(formula)
    return f"${latex}$" if latex else escape(formula.plain)


def _fence(source: str, language: str) -> str:
    """A code block whose fence is longer than any run of backticks in it."""
    lines = clean_lines(source)
    runs = (len(run) for line in lines for run in re.findall("`+", line))
    fence = "`" * max(3, 1 + max(runs, default=0))
    return "\n".join([f"{fence}{language}", *lines, fence])
