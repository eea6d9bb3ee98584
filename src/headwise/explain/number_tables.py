"""Parse rows of numbers from CSV text and from JSON lists.

The cells of a CSV file are split at commas; where the first line has none, at tabs or semicolons.

* The first column holds **tokens** when no cell of it below the header is a number, or when its
  header is ``token``, ``tokens`` or ``词``, or empty, as pandas writes it.
* The first row is a **header** when it names such a column, or when no cell of it is a number.
"""

import csv
import io
import re
from collections.abc import Sequence

from headwise.document.text_format import clean
from headwise.errors import BadFile
from headwise.lang import Text

TOKEN_NAMES = ("", "token", "tokens", "词")

DIAGNOSED_LINES, LONGEST_LINE = 8, 10_000
"""How many lines of an unreadable table are searched for the cause, up to a longer one."""

_DECIMAL_COMMA = re.compile(r"\s*[-+]?[0-9]+,[0-9]+\s*", re.ASCII)


def from_text(text: str, *, tabs: bool = False) -> tuple[list[list[float]], tuple[str, ...] | None]:
    r"""Parse CSV text into rows of numbers and, if it has a column of tokens, the tokens.

    Raises:
        BadFile: if it is empty, rows differ in length, or a cell is not a number.

    Example:
        >>> from_text("token,a,b\n我,1,2\n爱,3,4")
        ([[1.0, 2.0], [3.0, 4.0]], ('我', '爱'))
    """
    try:
        numbers, tokens = _read(_cells(text, tabs))
    except BadFile:
        _check_separators(text)
        raise
    if not numbers[0]:
        _check_separators(text)
    return numbers, tokens


def _read(lines: list[tuple[int, list[str]]]) -> tuple[list[list[float]], tuple[str, ...] | None]:
    if not lines:
        raise BadFile("expected at least one row of numbers, got none")
    first = lines[0][1]
    named = first[0].strip().lower() in TOKEN_NAMES
    header = (named and len(first) > 1) or not any(map(_is_number, first))
    body = lines[1:] if header else lines
    if not body:
        raise BadFile("expected rows of numbers below the header, got none")
    labelled = (header and named) or not any(_is_number(row[0]) for _, row in body)
    width = len(body[0][1])
    numbers = [_row(line, row, width, int(labelled)) for line, row in body]
    return numbers, tuple(row[0].strip() for _, row in body) if labelled else None


def from_lists(rows: object, *, booleans: bool = False) -> list[list[float]]:
    """Rows of numbers from JSON, or `BadFile`; with ``booleans`` true is 1 and false is 0."""
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise BadFile("expected a list of rows such as [[1, 2], [3, 4]], got something else")
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise _unequal(Text("row {row}", row=i), len(rows[0]), len(row))
    return [
        [_number(i, j, cell, booleans) for j, cell in enumerate(row)] for i, row in enumerate(rows)
    ]


def _check_separators(text: str) -> None:
    """Raise a more specific error where spaces or decimal commas are the cause."""
    for number, line in enumerate(text.splitlines()[:DIAGNOSED_LINES], 1):
        words = line.split()
        if len(line) > LONGEST_LINE:
            return
        if any(map(_decimal_commas, (line.split(";"), line.split("\t"), words))):
            raise BadFile(
                "expected decimal points, line {line} has decimal commas: {text}; "
                "write 0.5 for 0,5, and put commas, semicolons or tabs between numbers",
                line=number,
                text=_excerpt(line),
            )
        if len(words) > 1 and all(map(_is_number, words[1:])):
            raise BadFile(
                "expected commas, semicolons or tabs between numbers, line {line} has "
                "spaces: {text}; put commas there",
                line=number,
                text=_excerpt(line),
            )


def _decimal_commas(parts: list[str]) -> bool:
    """Whether these are numbers such as 0,5, the first of them maybe a token."""
    numbers = all(_is_number(part.replace(",", ".")) for part in parts[1:])
    return len(parts) > 1 and numbers and any(map(_DECIMAL_COMMA.fullmatch, parts))


def _cells(text: str, tabs: bool) -> list[tuple[int, list[str]]]:
    """Every line that is not blank, with its number counted from 1."""
    first = text.lstrip().split("\n", 1)[0]
    separator = "\t" if tabs else next((s for s in ",\t;" if s in first), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        line = reader.line_num
        raise BadFile("not readable at line {line}: {error}", line=line, error=error) from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _row(line: int, row: Sequence[str], width: int, skip: int) -> list[float]:
    if len(row) != width:
        raise _unequal(Text("line {line}", line=line), width, len(row))
    for column, cell in enumerate(row[skip:], skip + 1):
        if not _is_number(cell):
            raise BadFile(
                "expected a number in line {line}, column {column} (counted from 1), got "
                "{got}; put tokens into the first column of every row",
                line=line,
                column=column,
                got=_excerpt(cell),
            )
    return [float(cell) for cell in row[skip:]]


def _number(row: int, column: int, cell: object, booleans: bool) -> float:
    number = isinstance(cell, int | float) and (booleans or not isinstance(cell, bool))
    try:
        return float(cell if number else "x")  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        raise BadFile(
            "expected a number in row {row}, column {column} (counted from 0), got "
            "{got}; replace it",
            row=row,
            column=column,
            got=_excerpt(cell),
        ) from None


def _unequal(row: Text, expected: int, got: int) -> BadFile:
    return BadFile(
        "expected {expected} cells in {row} as in the first row, got {got}; make the rows equal",
        expected=expected,
        row=row,
        got=got,
    )


def _excerpt(cell: object) -> str:
    text = clean(repr(cell))
    return text if len(text) <= 40 else text[:39] + "…"
