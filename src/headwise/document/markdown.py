"""A document as Markdown: mathematics as LaTeX, everything else escaped."""

import re

from headwise.document import blocks, terminal, text_format
from headwise.document.formulas import math
from headwise.document.text_format import clean, clean_lines, spans
from headwise.lang import Lang, Text

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def render(document: blocks.Document, lang: Lang = "en") -> str:
    """The document as Markdown with ``$$`` formulas; its text is not trusted."""
    writer = _Markdown(lang, document.precision)
    title = writer.block(blocks.Heading(document.title, 1))
    return "\n\n".join([title, *map(writer.block, document.blocks)]) + "\n"


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
        self.lang, self.precision, self.labels = lang, precision, blocks.Labels()

    def block(self, block: blocks.Block) -> str:
        match block:
            case blocks.Heading():
                return f"{'#' * min(max(block.level, 1), 6)} {self.say(block.text)}"
            case blocks.Paragraph():
                return self.say(block.text)
            case blocks.Formula():
                return _formula(block, "$$\n")
            case blocks.Matrix() | blocks.SideBySide():
                return "\n\n".join(map(self.matrix, blocks.matrices_of(block)))
            case blocks.Working():
                return "\n".join(f"- {_formula(line, '$')}" for line in block.lines)
            case blocks.Table():
                return self.table(block)
            case blocks.HeatMap():
                return self.heat(block)
            case blocks.Notice():
                return f"> **{'✓' if block.good else '✗'}** {self.say(block.text)}"
            case blocks.Code():
                return _fence(block.source, re.sub(r"\W", "", block.language))

    def say(self, text: Text) -> str:
        first, *rest = spans(text, self.lang)
        written = [f"${first[0]}$" if first[1] else escape(first[0])]
        for piece, formula in rest:  # after a full stop no mark begins a line
            written.append(f"${piece}$" if formula else escape(f".{piece}")[1:])
        return "".join(written)

    def matrix(self, matrix: blocks.Matrix) -> str:
        name = math(matrix.symbol)
        body = text_format.bmatrix(matrix.values, self.precision)
        shown = f"$$\n{f'{name} = ' if name else ''}{body}\n$$"
        spoken = [] if name else [f"{escape(matrix.symbol.plain)} ="]
        labels = self.labels.new(matrix)
        return "\n\n".join([*([self.say(labels)] if labels else []), *spoken, shown])

    def table(self, table: blocks.Table) -> str:
        rows = [[self.say(text) or " " for text in row] for row in [table.head, *table.rows]]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], f"|{' --- |' * len(table.head)}", *lines[1:]])

    def heat(self, heat: blocks.HeatMap) -> str:
        rows, notes = terminal.drawn(heat)
        picture = "\n".join(f"|{cells}| {label}" for label, cells in rows)
        title = f"**{self.say(heat.title)}**"
        return "\n\n".join([title, _fence(picture, ""), *map(self.say, notes)])


def _formula(formula: blocks.Formula, mark: str) -> str:
    latex = math(formula)
    return f"{mark}{latex}{mark[::-1]}" if latex else escape(formula.plain)


def _fence(source: str, language: str) -> str:
    """A code block whose fence is longer than any run of backticks in it."""
    lines = clean_lines(source)
    runs = (len(run) for line in lines for run in re.findall("`+", line))
    fence = "`" * max(3, 1 + max(runs, default=0))
    return "\n".join([f"{fence}{language}", *lines, fence])
