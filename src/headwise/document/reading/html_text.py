"""Convert an HTML page to text: tables as Markdown tables, formulas as LaTeX, without scripts.

A table directly after an equals sign becomes an array: ``X =`` and ``[[1, 2], [3, 4]]``.
"""

import re
from dataclasses import dataclass, field

from headwise.document.reading.article_text import ArticleText, LineWriter, check_length
from headwise.document.reading.html_tokens import RAW_TEXT, HtmlToken, tokens
from headwise.document.reading.math_elements import FormulaBuilder
from headwise.errors import BadFile
from headwise.lang import same

_HIDDEN = {"template", "svg", "canvas", "audio", "video", "object", "nav", "button"}
_HIDDEN |= {"select", "datalist", "del", "s", "strike", "noscript", "rt", "rp", *RAW_TEXT}
"""Elements whose content is not part of the article's text."""

_BLOCKS = {"p", "div", "section", "article", "main", "header", "footer", "aside", "figure"}
_BLOCKS |= {"figcaption", "ul", "ol", "li", "dl", "dt", "dd", "blockquote", "hr", "br", "pre"}
_BLOCKS |= {"details", "summary", "address", "caption", "table", "thead", "tbody", "tfoot", "tr"}
_BLOCKS |= {f"h{level}" for level in range(1, 7)}

_VOID = {"br", "hr", "img", "input", "meta", "link", "col", "wbr", "source", "area", "base"}
_INDICES = {"sub": "_{", "sup": "^{"}
MOST_TOKENS = 500_000  # the maximum number of tags and texts; an article has a few thousand
MOST_COLUMNS = 400  # the maximum number of cells in a row with colspan and rowspan


def read(page: str) -> ArticleText:
    r"""Return the text of a page; the place of a line is its line number in the source.

    Example:
        >>> read("<p>s<sub>01</sub> = <b>0.5</b></p><script>x = 1</script>").text
        's_{01} = 0.5\n'
    """
    writer = _Page()
    for count, token in enumerate(tokens(page)):
        if count >= MOST_TOKENS:
            raise BadFile(
                "expected a page with at most {most:,} tags and texts, got a larger page; extract "
                "the worked example",
                most=MOST_TOKENS,
            )
        writer.take(token)
    writer.end_line()
    return writer.lines.finished()


@dataclass
class _Table:
    """An unfinished table: its rows of cells (text, is header), and cells that span rows."""

    array: bool  # whether the table follows an equals sign
    layout: bool = False  # whether the table only arranges the page
    rows: list[tuple[int, list[tuple[str, bool]]]] = field(default_factory=list)
    below: dict[int, int] = field(default_factory=dict)  # column: remaining rows of its rowspan

    def add_row(self, line: int) -> None:
        self.rows.append((line, []))
        self._fill()

    def add_cell(self, text: str, header: bool, across: int, down: int) -> None:
        cells = self.rows[-1][1]
        for i in range(min(across, MOST_COLUMNS - len(cells))):
            if down > 1:
                self.below[len(cells)] = down - 1
            cells.append((text if i == 0 else "", header))
        self._fill()

    def _fill(self) -> None:
        """Add empty cells in the columns that a cell of an earlier row spans."""
        cells = self.rows[-1][1]
        while self.below.get(len(cells), 0) > 0:
            self.below[len(cells)] -= 1
            cells.append(("", True))

    def written(self) -> list[tuple[int, str]]:
        """Return the lines of the table, each with its line number in the page."""
        rows = [(line, cells) for line, cells in self.rows if cells]
        if self.array:
            return _array(rows)
        lines = [(line, f"| {' | '.join(text for text, _ in cells)} |") for line, cells in rows]
        if len(rows) > 1 and all(header for _, header in rows[0][1]):
            lines.insert(1, (rows[0][0], "|" + " --- |" * len(rows[0][1])))
        return lines


def _array(rows: list[tuple[int, list[tuple[str, bool]]]]) -> list[tuple[int, str]]:
    """Write the cells that are not headers in nested brackets, one row per line."""
    bodies = [(line, [text for text, header in cells if not header]) for line, cells in rows]
    written = [(line, f"[{', '.join(body)}]") for line, body in bodies if any(body)]
    last = len(written) - 1
    return [
        (line, ("[" if i == 0 else "") + text + ("," if i < last else "]"))
        for i, (line, text) in enumerate(written)
    ]


class _Page:
    """A converter of HTML tokens to lines of text."""

    def __init__(self) -> None:
        self.lines = LineWriter()
        self.buffer: list[str] = []
        self.size = 0  # the number of characters of the whole text
        self.start = 0  # the line number in the page at which the buffer begins
        self.skipped: list[str] = []  # the name of the open hidden element, once per nested one
        self.tables: list[_Table] = []
        self.cell: tuple[bool, int, int] | None = None  # of the open cell: header, columns, rows
        self.indices: list[int] = []  # the starts in the buffer of open sub- and superscripts
        self.formula: FormulaBuilder | None = None
        self.display = False  # whether the formula is on a separate line
        self.preformatted = self.script_of_tex = False
        self.language: str | None = None  # the shown language of a page in two languages

    def take(self, token: HtmlToken) -> None:
        """Handle the next token of the page."""
        if self.skipped:
            self._skip(token)
        elif self.formula is not None:
            self._math(token, self.formula)
        elif token.kind == "text":
            self._text(token)
        elif token.kind == "start":
            self._start(token)
        else:
            self._end(token)

    def _skip(self, token: HtmlToken) -> None:
        if token.value == self.skipped[0] and token.kind != "text":
            if token.kind == "start":
                self.skipped.append(token.value)
            else:
                self.skipped.pop()

    def _math(self, token: HtmlToken, formula: FormulaBuilder) -> None:
        if token.kind == "text":
            formula.text(token.value)
        elif token.kind == "start":
            formula.start(token.value, token.attributes)
        elif token.value == "math":
            mark = "$$" if self.display else "$"
            self._add(f" {mark}{formula.latex()}{mark} ", token.line)
            self.formula = None
        else:
            formula.end(token.value)

    def _text(self, token: HtmlToken) -> None:
        if self.script_of_tex:
            self._add(f" ${' '.join(token.value.split())}$ ", token.line)
        elif self.preformatted and self.cell is None:
            first, *rest = token.value.split("\n")
            self._add(first, token.line)
            for i, line in enumerate(rest, 1):
                self.end_line()
                self._add(line, token.line + i)
        else:
            blank = len(token.value) - len(token.value.lstrip())
            self._add(token.value, token.line + token.value.count("\n", 0, blank))

    def _add(self, text: str, line: int) -> None:
        if text and not (text.isspace() and not self.buffer and not self.preformatted):
            self.start = self.start or line
            self.buffer.append(text)
            self.size += len(text)
            check_length(self.size)

    def end_line(self) -> None:
        """End the current line of the text; inside a table cell, add only a space."""
        if self.cell is not None:
            self.buffer.append(" ")
            return
        text = "".join(self.buffer)
        text = text if self.preformatted else " ".join(text.split()).replace("$ $", " ")
        if self.buffer:
            self.lines.add(text, same(str(self.start)))
        self.buffer, self.start, self.indices = [], 0, []

    def _start(self, token: HtmlToken) -> None:
        name, attributes = token.value, token.attributes
        if name == "html" and "data-title-zh" in attributes:
            self.language = attributes.get("lang")
        if name == "script" and attributes.get("type", "").lower().startswith("math/tex"):
            self.script_of_tex = True
        elif self._hidden(name, attributes):
            self.skipped = [name]
        elif name == "math":
            self.formula = FormulaBuilder()
            self.display = attributes.get("display") == "block"
        elif name in _INDICES:
            self.indices.append(len(self.buffer))
            self._add(_INDICES[name], token.line)
        elif name == "a" and self.indices:  # the number of a footnote
            del self.buffer[self.indices[-1] :]
            self.skipped = ["a"]
        elif name in ("table", "tr", "td", "th"):
            self._start_of_table(name, token)
        elif name in _BLOCKS:
            self._start_of_block(name, token.line)

    def _hidden(self, name: str, attributes: dict[str, str]) -> bool:
        if name in _VOID:
            return False
        style = attributes.get("style", "").replace(" ", "").lower()
        other = name == "span" and self.language is not None and "lang" in attributes
        return (
            name in _HIDDEN
            or "hidden" in attributes
            or attributes.get("aria-hidden") == "true"
            or "display:none" in style
            or (other and attributes["lang"] != self.language)
        )

    def _start_of_block(self, name: str, line: int) -> None:
        self.end_line()
        if self.cell is not None:
            return
        if name == "pre":
            self.lines.add("```", same(str(line)))
            self.preformatted = True
        elif name in ("p", "ul", "ol", "dl") or name[1:].isdigit():
            self.lines.add("", same(str(line)))
        if name[1:].isdigit():
            self._add("#" * int(name[1:]) + " ", line)

    def _start_of_table(self, name: str, token: HtmlToken) -> None:
        if name == "table":
            self._layout()
            self.end_line()
            before = next((line for line in reversed(self.lines.lines) if line), "")
            self.tables.append(_Table(array=before.rstrip("$ ").endswith(("=", "≈"))))
            return
        self._end_of_cell()
        if not self.tables or self.tables[-1].layout:
            self.end_line()
        elif name == "tr":
            self.tables[-1].add_row(token.line)
        else:
            self.end_line()
            if not self.tables[-1].rows:
                self.tables[-1].add_row(token.line)
            across, down = (token.attributes.get(key, "") for key in ("colspan", "rowspan"))
            self.cell = (name == "th", _span(across), _span(down))

    def _layout(self) -> None:
        """If a table begins in a cell, treat the outer table as page layout only."""
        if self.cell is not None:
            self.cell = None
            self.end_line()
            self.tables[-1].layout = True
            self._write(self.tables[-1])

    def _end(self, token: HtmlToken) -> None:
        name = token.value
        if name == "script":
            self.script_of_tex = False
        elif name in _INDICES and self.indices:
            if len(self.buffer) > self.indices.pop():
                self._add("}", token.line)
        elif name in ("td", "th", "tr"):
            self._end_of_cell()
        elif name == "table" and self.tables:
            self._end_of_cell()
            self._write(self.tables.pop())
        elif name == "pre" and self.preformatted:
            self.end_line()
            self.preformatted = False
            self.lines.add("```", same(str(token.line)))
        elif name in _BLOCKS:
            self.end_line()

    def _end_of_cell(self) -> None:
        if self.cell is None:
            return
        header, across, down = self.cell
        text = " ".join("".join(self.buffer).split())
        self.cell, self.buffer, self.start, self.indices = None, [], 0, []
        self.tables[-1].add_cell(text, header, across, down)

    def _write(self, table: _Table) -> None:
        lines = [(text, same(str(line))) for line, text in table.written()]
        table.rows = []
        if table.array:
            for text, place in lines:
                self.lines.add(text, place)
            self.lines.add("", lines[-1][1] if lines else same(""))
        else:
            self.lines.block(lines)


def _span(value: str) -> int:
    return min(int(value), MOST_COLUMNS) if re.fullmatch(r"[1-9][0-9]{0,3}", value) else 1
