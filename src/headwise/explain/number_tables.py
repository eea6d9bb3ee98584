"""Parse rows of numbers from CSV text and from JSON lists.

The separator of a CSV file is the comma, or, if the first line has no comma, the tab or semicolon.
Cells may be written as ``−0.5`` with any minus sign, ``50%``, ``1/2`` or ``1,000.5``.

* The first column contains **tokens** if none of its cells below the header is a number, or if its
  header is ``token``, ``tokens`` or ``词``, or empty, as pandas writes it.
* The first row is a **header** if it has such a name for the token column, or if none of its cells
  looks like a number. The result contains the header, so callers can tell the user about it.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from headwise.document.text_format import clean
from headwise.errors import BadFile
from headwise.lang import Text

TOKEN_NAMES = ("", "token", "tokens", "词")

DIAGNOSED_LINES, LONGEST_LINE = 8, 10_000
"""The search for the cause of an error covers the first lines, and stops at a longer line."""

_DECIMAL_COMMA = re.compile(r"\s*[-+]?[0-9]+,[0-9]+\s*", re.ASCII)
_SIGNS = str.maketrans({**dict.fromkeys("−–－", "-"), "＋": "+", "．": ".", "％": "%", "∞": "inf"})
_THOUSANDS = re.compile(r"[-+]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]*|(?<=,[0-9]{3},[0-9]{3}))")
"""A decimal point or a second comma is required, because 1,000 may mean 1.000."""
_NUMBER_LIKE = re.compile(r"\W{0,3}[0-9](?:[^A-Za-z]|[eE][-+0-9])*")


@dataclass(frozen=True)
class NumberTable:
    """Rows of numbers, the tokens of the rows or None, and the cells of the header or None.

    ``line`` is the line number of the header, counted from 1.
    """

    rows: list[list[float]]
    tokens: tuple[str, ...] | None = None
    header: tuple[str, ...] | None = None
    line: int = 1


def from_text(text: str, *, tabs: bool = False) -> NumberTable:
    r"""Parse CSV text.

    Raises:
        BadFile: if the text is empty, rows differ in length, or a cell is not a number.

    Example:
        >>> from_text("token,a,b\n我,1,50%\n爱,−3,1/2")  # doctest: +ELLIPSIS
        NumberTable(rows=[[1.0, 0.5], [-3.0, 0.5]], tokens=('我', '爱'), header=('token', ...
    """
    try:
        table = from_cells(_cells(text, tabs))
    except BadFile:
        _check_separators(text)
        raise
    if not table.rows[0]:
        _check_separators(text)
    return table


def number(cell: str) -> float | None:
    """Return the number in a cell, or None; the forms are listed at the top of this file.

    Example:
        >>> [number(cell) for cell in ("−0.5", "50%", " 1/2", "1,000.5", "-∞", "0,5", "1e-3", "x")]
        [-0.5, 0.5, 0.5, 1000.5, -inf, None, 0.001, None]
    """
    text = cell.strip().translate(_SIGNS)
    above, slash, below = text.partition("/")
    if slash:
        divisor, dividend = number(below), number(above)
        return dividend / divisor if divisor and dividend is not None else None
    if text.endswith("%"):
        percent = number(text[:-1])
        return None if percent is None else percent / 100
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def from_cells(lines: list[tuple[int, list[str]]]) -> NumberTable:
    """Convert pairs (line number, cells) to a table, as `from_text` does."""
    if not lines:
        raise BadFile("expected at least one row of numbers, got an empty table")
    first = lines[0][1]
    named = first[0].strip().lower() in TOKEN_NAMES
    header = (named and len(first) > 1) or not any(map(_NUMBER_LIKE.fullmatch, first))
    body = lines[1:] if header else lines
    if not body:
        raise BadFile("expected rows of numbers below the header, got only the header")
    labelled = (header and named) or not any(_is_number(row[0]) for _, row in body)
    width = len(body[0][1])
    return NumberTable(
        [_row(line, row, width, int(labelled)) for line, row in body],
        tuple(row[0].strip() for _, row in body) if labelled else None,
        tuple(cell.strip() for cell in first) if header else None,
        lines[0][0],
    )


def named_blocks(text: str, *, tabs: bool = False) -> dict[str, list[list[float]]]:
    r"""Parse several arrays from one text; a line with the name precedes each array.

    Raises:
        BadFile: if rows have no name above them, differ in length, or contain other text.

    Example:
        >>> named_blocks("W_Q\n1,0\n0,1\nb_Q\n5,7\n")
        {'W_Q': [[1.0, 0.0], [0.0, 1.0]], 'b_Q': [[5.0, 7.0]]}
    """
    result: dict[str, list[list[float]]] = {}
    rows: list[list[float]] | None = None
    for line, cells in _cells(text, tabs):
        full = [cell.strip() for cell in cells if cell.strip()]
        if len(full) == 1 and number(full[0]) is None:
            rows = result.setdefault(full[0], [])
        elif rows is None:
            raise BadFile(
                "expected a line with only the name of an array, such as W_Q, above line {line}",
                line=line,
            )
        else:
            rows.append(_row(line, cells, len(rows[0]) if rows else len(cells), 0))
    return {name: rows for name, rows in result.items() if rows}


def from_lists(rows: object, *, booleans: bool = False) -> list[list[float]]:
    """Convert JSON lists to rows of numbers; with ``booleans``, true is 1 and false is 0."""
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise BadFile("expected a list of rows such as [[1, 2], [3, 4]], got other content")
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise _unequal(Text("row {row}", row=i), len(rows[0]), len(row))
    return [
        [_number(i, j, cell, booleans) for j, cell in enumerate(row)] for i, row in enumerate(rows)
    ]


def _check_separators(text: str) -> None:
    """Raise a more specific error if spaces or decimal commas are the cause."""
    for number, line in enumerate(text.splitlines()[:DIAGNOSED_LINES], 1):
        words = line.split()
        if len(line) > LONGEST_LINE:
            return
        if any(map(_decimal_commas, (line.split(";"), line.split("\t"), words))):
            raise BadFile(
                "expected decimal points, got decimal commas in line {line}: {text}; write 0.5 "
                "for 0,5, and separate numbers by commas, semicolons or tabs",
                line=number,
                text=_excerpt(line),
            )
        if len(words) > 1 and all(map(_is_number, words[1:])):
            raise BadFile(
                "expected commas, semicolons or tabs between numbers, got spaces in line {line}: "
                "{text}; separate numbers by commas",
                line=number,
                text=_excerpt(line),
            )


def _decimal_commas(parts: list[str]) -> bool:
    """Return whether the parts are numbers with decimal commas, possibly after a token."""
    numbers = all(_is_number(part.replace(",", ".")) for part in parts[1:])
    return len(parts) > 1 and numbers and any(map(_DECIMAL_COMMA.fullmatch, parts))


def _cells(text: str, tabs: bool) -> list[tuple[int, list[str]]]:
    """Return the cells of every line that is not blank, with line numbers from 1."""
    first = text.lstrip().split("\n", 1)[0]
    separator = "\t" if tabs else next((s for s in ",\t;" if s in first), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        line = reader.line_num
        raise BadFile("cannot read line {line}: {error}", line=line, error=error) from error


def _is_number(cell: str) -> bool:
    return number(cell) is not None


def _row(line: int, row: Sequence[str], width: int, skip: int) -> list[float]:
    if len(row) != width:
        raise _unequal(Text("line {line}", line=line), width, len(row))
    numbers = []
    for column, cell in enumerate(row[skip:], skip + 1):
        value = number(cell)
        if value is None:
            raise BadFile(
                "expected a number in line {line}, column {column} (both counted from 1), got "
                "{got}; put tokens only into the first column",
                line=line,
                column=column,
                got=_excerpt(cell),
            )
        numbers.append(value)
    return numbers


def _number(row: int, column: int, cell: object, booleans: bool) -> float:
    number = isinstance(cell, int | float) and (booleans or not isinstance(cell, bool))
    try:
        return float(cell if number else "x")  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        raise BadFile(
            "expected a number in row {row}, column {column} (both counted from 0), got {got}; "
            "replace this value",
            row=row,
            column=column,
            got=_excerpt(cell),
        ) from None


def _unequal(row: Text, expected: int, got: int) -> BadFile:
    return BadFile(
        "expected {expected} cells in {row}, as in the first row, got {got}; give all rows the "
        "same length",
        expected=expected,
        row=row,
        got=got,
    )


def _excerpt(cell: object) -> str:
    text = clean(repr(cell))
    return text if len(text) <= 40 else text[:39] + "…"
