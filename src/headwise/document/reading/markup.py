"""Read Markdown, LaTeX and reStructuredText, without comments, scripts and layout commands.

Line numbers stay those of the file, except that rules of reStructuredText tables are removed.
"""

import re
from collections.abc import Iterator

from headwise.document.reading.article_text import ArticleText, LineWriter, check_length
from headwise.lang import same

_ENCODED = re.compile(
    r"data:[a-z]{1,20}/[\w.+-]{1,40};base64,[A-Za-z0-9+/=]*+"
    r"|(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{200,}+={0,2}"
)
"""A file embedded in a text: a data URL, or at least 200 characters of base64."""

_HIDDEN = (("<script", "</script>"), ("<style", "</style>"), ("<!--", "-->"))
_FRONT_MATTER = re.compile(
    r"\A---[ \t]*\n[\w-]{1,40}:[^\n]*\n(?:(?!---)[^\n]*\n){0,100}?---[ \t]*(?=\n|\Z)"
)


def read_markdown(text: str) -> ArticleText:
    r"""Read Markdown or plain text without scripts, styles, comments, front matter and base64.

    Example:
        >>> read_markdown("a<!-- x = 1\n-->\n![](data:image/png;base64,iVBORw0K)").text
        'a\n\n![]()'
    """
    return ArticleText(without_markup(_FRONT_MATTER.sub(_blank_match, text)))


def without_markup(text: str) -> str:
    """Blank out scripts, styles and comments, and remove base64."""
    for opening, closing in _HIDDEN:
        text = _without(text, opening, closing)
    return _ENCODED.sub("", text)


def _without(text: str, opening: str, closing: str) -> str:
    """Blank out every part from ``opening`` to ``closing``; keep a part without ``closing``."""
    parts: list[str] = []
    lower, position = text.lower(), 0
    if len(lower) != len(text):  # a letter whose lower-case form is longer; marks have none
        lower = text
    while True:
        start = lower.find(opening, position)
        end = lower.find(closing, start) if start >= 0 else -1
        if end < 0:
            return "".join([*parts, text[position:]])
        end += len(closing)
        parts += [text[position:start], "\n" * text.count("\n", start, end)]
        position = end


def _blank_match(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)%.*")
_LAYOUT = re.compile(
    r"\\(?:scriptsize|footnotesize|small|tiny|normalsize|centering|raggedright)(?![A-Za-z])"
    r"|\\(?:arraycolsep|tabcolsep|hangindent|parindent)\s?=\s?[\d.]{1,8}\s?[a-z]{2}(?![A-Za-z])"
    r"|\\(?:[vh]space\*?|label|ref|eqref|cite[a-z]{0,3}|includegraphics|input)"
    r"(?:\[[^\[\]\n]{0,80}\])?\{[^{}\n]{0,120}\}|\\setlength\{[^{}\n]{0,40}\}\{[^{}\n]{0,40}\}"
)
"""Commands that set lengths and sizes or contain references; their numbers are not text."""

_VERBATIM = re.compile(r"\\(begin|end)\{(?:verbatim|lstlisting|minted|Verbatim)\*?\}")


def read_latex(text: str) -> ArticleText:
    r"""Read LaTeX without comments, and without the text before and after the document.

    Example:
        >>> read_latex("\\usepackage{x}\n\\begin{document}\na % no\n50\\% b\n\\end{document}").text
        '\n\\begin{document}\na \n50\\% b\n\\end{document}'
    """
    begin, end = text.find("\\begin{document}"), text.find("\\end{document}")
    if begin >= 0:
        text = "\n" * text.count("\n", 0, begin) + text[begin : end + 14 if end > begin else None]
    for opening, closing in (("\\begin{comment}", "\\end{comment}"), ("\\iffalse", "\\fi")):
        text = _without(text, opening, closing)
    lines, verbatim = [], False
    for line in text.split("\n"):
        for mark in _VERBATIM.findall(line):
            verbatim = mark == "begin"
        lines.append(line if verbatim else _LAYOUT.sub("", _COMMENT.sub(r"\1", line)))
    return ArticleText("\n".join(lines))


_ROLE = re.compile(r":([a-zA-Z:]{1,20}):`([^`\n]{0,500})`")
_DIRECTIVE = re.compile(r"(?P<indent>\s*)\.\. (?P<name>[A-Za-z][\w:-]{0,40})::\s*(?P<rest>.*)")
_GRID_RULE = re.compile(r"\s*\+(?:[-=]{2,}\+)+\s*")
_SIMPLE_RULE = re.compile(r"\s*={2,}(?:\s+={2,})+\s*")
_UNDERLINE = re.compile(r"([=\-`:'\"~^_*+#<>.])\1{2,}\s*")
_CODE = {"code", "code-block", "sourcecode", "parsed-literal", "prompt", "ipython", "testcode"}
_SHOWN = {"note", "warning", "tip", "important", "admonition", "hint", "topic", "rubric", "seealso"}


def read_rst(text: str) -> ArticleText:
    r"""Convert formulas, tables, headings and literal blocks of reStructuredText to Markdown.

    Example:
        >>> read_rst("Part\n----\n\n.. math:: a = 1\n\n.. hidden\n\n== ==\n1  2\n== ==").text
        '# Part\n\n$$ a = 1\n$$\n\n| 1 | 2 |\n'
    """
    shown = without_markup(text)
    check_length(len(shown))
    return _Rst(shown.split("\n")).run()


class _Rst:
    """A converter that reads the lines once."""

    def __init__(self, source: list[str]) -> None:
        self.source, self.at = source, 0
        self.writer = LineWriter()
        self.levels: list[str] = []  # the marks of headings in the order of their levels

    def run(self) -> ArticleText:
        while self.at < len(self.source):
            begun = self.at
            self._line(self.source[self.at])
            if self.at > begun and not self.source[self.at - 1].strip():
                self.writer.add("", same(str(self.at)))
        return self.writer.finished()

    def _line(self, line: str) -> None:
        directive = _DIRECTIVE.fullmatch(line)
        below = self.source[self.at + 1] if self.at + 1 < len(self.source) else ""
        if directive is not None:
            self._directive(directive)
        elif line.lstrip().startswith(".. "):
            self.at += 1
            list(self._block(_indent(line)))  # a comment, a target or a substitution
        elif _SIMPLE_RULE.fullmatch(line):
            self._simple_table(line)
        elif _GRID_RULE.fullmatch(line):
            columns = line.count("+") - 1
            if "=" in line:
                self._add("|" + " --- |" * columns)
            self.at += 1
        elif line.strip() and _UNDERLINE.fullmatch(below) and not line.startswith((" ", "|")):
            self._heading(line, below[0])
        elif line.rstrip().endswith("::"):
            self._add(line.rstrip().removesuffix("::" if line.strip() == "::" else ":"))
            self.at += 1
            self._fenced("```", _indent(line))
        elif _UNDERLINE.fullmatch(line):
            self.at += 1  # a line above a heading, or a rule
        else:
            self._add(line)
            self.at += 1

    def _add(self, line: str, at: int | None = None) -> None:
        text = _ROLE.sub(lambda match: f"${match[2]}$" if match[1] == "math" else match[2], line)
        number = (self.at if at is None else at) + 1
        self.writer.add(text.replace("``", "`"), same(str(number)))

    def _heading(self, title: str, mark: str) -> None:
        if mark not in self.levels:
            self.levels.append(mark)
        self._add("#" * min(self.levels.index(mark) + 1, 6) + " " + title.strip())
        self.at += 2

    def _directive(self, match: re.Match[str]) -> None:
        name, rest, indent = match["name"], match["rest"], len(match["indent"])
        if name == "math":
            self._add(f"$$ {rest}")
            self.at += 1
            lines = self._trimmed(indent)
            for at, line in lines:
                self._add(line.strip(), at)
            self._add("$$", lines[-1][0] if lines else self.at - 1)
        elif name in _CODE:
            self.at += 1
            self._fenced("```", indent)
        elif name in ("list-table", "csv-table", "table"):
            self._add(rest)  # the title
            self.at += 1
            if name != "table":  # whose rows follow as they are
                self._listed(list(self._block(indent)), commas=name == "csv-table")
        elif name in _SHOWN:
            self._add(rest)
            self.at += 1
        elif name in ("image", "figure", "raw", "include", "only", "toctree", "plot"):
            self.at += 1
            list(self._block(indent))
        else:
            self.at += 1

    def _block(self, indent: int) -> Iterator[tuple[int, str]]:
        """Yield the following lines that are blank or indented more deeply, without options."""
        while self.at < len(self.source):
            line = self.source[self.at]
            if line.strip() and _indent(line) <= indent:
                return
            self.at += 1
            if not re.match(r"\s*:[\w-]{1,30}:(?:\s|$)", line):
                yield self.at - 1, line

    def _trimmed(self, indent: int) -> list[tuple[int, str]]:
        """Return the block without blank lines at its start and end."""
        lines = list(self._block(indent))
        full = [i for i, (_, line) in enumerate(lines) if line.strip()]
        return lines[full[0] : full[-1] + 1] if full else []

    def _fenced(self, fence: str, indent: int) -> None:
        if lines := self._trimmed(indent):
            for at, line in [(lines[0][0], fence), *lines, (lines[-1][0], fence)]:
                self.writer.add(line, same(str(at + 1)))

    def _listed(self, lines: list[tuple[int, str]], *, commas: bool) -> None:
        """Convert a table written as a list of lists, or as lines of cells between commas."""
        rows: list[tuple[int, list[str]]] = []
        for at, line in lines:
            item = re.fullmatch(r"\s*(\*\s+)?-\s+(.*)", line)
            if commas and line.strip():
                rows.append((at, [cell.strip().strip('"') for cell in line.split(",")]))
            elif item and item[1]:
                rows.append((at, [item[2].strip()]))
            elif item and rows:
                rows[-1][1].append(item[2].strip())
        for at, cells in rows:
            self._add(f"| {' | '.join(cells)} |", at)

    def _simple_table(self, rule: str) -> None:
        """Convert a table whose columns are marked by rules of equals signs."""
        starts = [match.start() for match in re.finditer("=+", rule)]
        ends = [*starts[1:], None]
        self.at += 1
        first = self.at
        while self.at < len(self.source):
            line = self.source[self.at]
            if _SIMPLE_RULE.fullmatch(line):
                more = self.source[self.at + 1] if self.at + 1 < len(self.source) else ""
                if not more.strip() or self.at == first:
                    self.at += 1
                    return
                self._add("|" + " --- |" * len(starts))
            elif line.strip():
                cells = (line[a:b].strip() for a, b in zip(starts, ends, strict=True))
                self._add(f"| {' | '.join(cells)} |")
            self.at += 1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
