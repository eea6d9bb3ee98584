r"""Find the arrays in the text of an article: nested brackets, LaTeX matrices and tables.

| form | example |
|---|---|
| brackets | ``X = [[1, 2], [3, 4]]``, ``array([[1., 2.], …])``, ``[[1 2] [3 4]]`` |
| LaTeX | ``X = \begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}`` |
| table | ``| 我 | 1 | 2 |``, with or without a header and a column of tokens |
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from headwise.document.text_format import clean
from headwise.errors import BadFile
from headwise.explain.number_tables import NumberTable, from_cells, number
from headwise.lang import Text

INPUT_NAMES = ("X", "x", "Z_in", "X_in", "input", "Input", "输入")
"""Usual names of the input, most likely first, used if the caller gives no name."""

MOST_ROWS = 4096  # the maximum number of rows of one array

_BRACKETS = re.compile(r"\[\s*+\[")
_BRACKET_ROW = re.compile(r"\[([^\[\]]{0,100000}+)\]\s*+[,;]?+\s*+(\])?+")
_MATRIX = re.compile(r"\\begin\{(?:[bpvB]?(?:small)?matrix|array)\}(?:\{[lcr| ]{1,60}\})?")
_MATRIX_END = re.compile(r"\\end\{(?:[bpvB]?(?:small)?matrix|array)\}")
_TABLE = re.compile(r"(?:^[ \t]*\|.*\|[ \t]*$\n?)+", re.MULTILINE)
_RULE = re.compile(r"\s*\|(?:\s*:?-{2,}:?\s*\|)+\s*")
_LABEL = re.compile(
    r"(?P<name>\\?[A-Za-z\u0370-\u03ff\u3400-\u9fff][\w{}^\\']{0,40})(?:\s*\([^()\n]{0,60}\))?"
    r"[\s$*`]{0,9}(?::?=|≈|:|：)?[\s$*`\\\[(]{0,9}(?:(?:np|torch|numpy|jnp)\.)?"
    r"(?:(?:array|tensor|asarray|Tensor)\s?\()?[\s$]{0,9}\Z"
)


@dataclass(frozen=True)
class ArticleArray:
    """An array in an article, and its label, which is "" for an array without a label."""

    name: str
    table: NumberTable


def find_array(text: str, name: str | None) -> NumberTable:
    """Return the array with a given name, or without a name the input of an article.

    The input is the array with a name in `INPUT_NAMES`, or else the only array of the article.

    Raises:
        BadFile: if the article does not contain this array; the message lists the known names.

    Example:
        >>> find_array("Scores S = [[5]]; X = [[1, 1/2], [0, −1]]", None).rows
        [[1.0, 0.5], [0.0, -1.0]]
    """
    found = list(arrays(text))
    names = [array.name for array in found]
    for wanted in (name,) if name else INPUT_NAMES:
        for array in found:
            if _plain(array.name) == _plain(wanted):
                return array.table
    if len(found) == 1 and name is None:
        return found[0].table
    listed = ", ".join(dict.fromkeys(clean(known) for known in names[:8] if known))
    raise BadFile(
        "expected an article that contains the array {wanted}, found {count} arrays{names}; add "
        "the name of an array to the path, as in file.md:X, or pass the numbers in a .csv file",
        wanted=clean(name or INPUT_NAMES[0]),
        count=len(found),
        names=Text(": {names}", names=listed) if listed else "",
    )


def arrays(text: str) -> Iterator[ArticleArray]:
    """Yield every array of numbers with two axes, in the order of the text."""
    found = [*_from_brackets(text), *_from_matrices(text), *_from_tables(text)]
    for start, table in sorted(found, key=lambda pair: pair[0]):
        if table.rows and table.rows[0] and len({len(row) for row in table.rows}) == 1:
            yield ArticleArray(_label(text, start), table)


def _from_brackets(text: str) -> Iterator[tuple[int, NumberTable]]:
    position = 0
    while start := _BRACKETS.search(text, position):
        position = start.end() - 1
        rows: list[list[str]] = []
        while (row := _BRACKET_ROW.match(text, position)) and len(rows) < MOST_ROWS:
            rows.append(row[1].split(",") if "," in row[1] else row[1].split())
            position = row.end()
            if row[2]:
                break
        position = max(position, start.end())
        yield start.start(), _numbers(rows)


def _from_matrices(text: str) -> Iterator[tuple[int, NumberTable]]:
    position = 0
    while start := _MATRIX.search(text, position):
        end = _MATRIX_END.search(text, start.end())
        if end is None:
            return
        lines = re.split(r"\\\\(?:\[[^\]\n]{0,9}\])?|\\cr\b", text[start.end() : end.start()])
        rows = [line.replace("\\hline", "").split("&") for line in lines if line.strip()]
        yield start.start(), _numbers(rows)
        position = end.end()


def _from_tables(text: str) -> Iterator[tuple[int, NumberTable]]:
    for match in _TABLE.finditer(text):
        lines = [line for line in match.group().splitlines() if not _RULE.fullmatch(line)]
        cells = [[_bare(cell) for cell in line.strip().strip("|").split("|")] for line in lines]
        try:
            yield match.start(), from_cells(list(enumerate(cells, 1)))
        except BadFile:
            continue


def _numbers(rows: list[list[str]]) -> NumberTable:
    """Convert cells to numbers; return an empty table if a cell is not a number, such as dots."""
    values = [[number(_bare(cell)) for cell in row if cell.strip()] for row in rows]
    whole = [[value for value in row if value is not None] for row in values]
    return NumberTable(whole if whole == values else [])


def _bare(cell: str) -> str:
    """Return a cell without the markup of formulas and of bold type."""
    return cell.strip().strip("$*` ").replace("\\%", "%").replace("\\infty", "∞")


def _label(text: str, start: int) -> str:
    """Return the label before an array: on the same line, or at the end of the text before it."""
    match = _LABEL.search(text[max(0, start - 160) : start].replace("\\left", ""))
    return match["name"] if match else ""


def _plain(name: str) -> str:
    return re.sub(r"[\\{}^_'\s]|mathbf|mathrm|boldsymbol", "", name)
