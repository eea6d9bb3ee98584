"""Rows of numbers from text and from lists: what is a header, what is a token, what is an error.

The cells of a CSV file are split at commas; where the first line has none, at tabs or semicolons.

* The first column holds **tokens** when no cell of it below the header is a number, or when the
  header calls it ``token``, ``tokens`` or ``词``, or leaves its name empty as pandas does.
* The first row is a **header** when it names such a column, or when no cell of it is a number.
"""

import csv
import io
import re
from collections.abc import Sequence

from headwise.document.plain import clean
from headwise.lang import Text

TOKEN_NAMES = ("", "token", "tokens", "词")


SEARCHED = 8
"""Lines of a table that could not be read in which the reason is looked for."""

LONG = 10_000
"""A line longer than this is not searched."""

_DECIMAL_COMMA = re.compile(r"\s*[-+]?[0-9]+,[0-9]+\s*", re.ASCII)


class Ragged(ValueError):
    """Rows that are no matrix of numbers; ``text`` says where and why. Stays in this room."""

    def __init__(self, en: str, zh: str) -> None:
        super().__init__(en)
        self.text = Text(en, zh)


def from_text(text: str, *, tabs: bool = False) -> tuple[list[list[float]], tuple[str, ...] | None]:
    r"""The numbers of a CSV text, and its tokens if it has a column of them.

    Raises:
        Ragged: if it is empty, rows differ in length, or a cell is no number.

    Example:
        >>> from_text("token,a,b\n我,1,2\n爱,3,4")
        ([[1.0, 2.0], [3.0, 4.0]], ('我', '爱'))
    """
    try:
        numbers, tokens = _read(_cells(text, tabs))
    except Ragged:
        _check_separators(text)
        raise
    if not numbers[0]:
        _check_separators(text)
    return numbers, tokens


def _read(lines: list[tuple[int, list[str]]]) -> tuple[list[list[float]], tuple[str, ...] | None]:
    if not lines:
        raise Ragged("expected at least one row of numbers, got none")
    header = _is_header(lines[0][1])
    body = lines[1:] if header else lines
    if not body:
        raise Ragged("expected rows of numbers below the header, got none")
    named = header and lines[0][1][0].strip().lower() in TOKEN_NAMES
    labelled = named or not any(_is_number(row[0]) for _, row in body)
    width = len(body[0][1])
    numbers = [_row(line, row, width, int(labelled)) for line, row in body]
    return numbers, tuple(row[0].strip() for _, row in body) if labelled else None


def from_lists(found: object, *, booleans: bool = False) -> list[list[float]]:
    """Lists of numbers, as JSON gives them, checked; with ``booleans`` true is 1 and false 0.

    Raises:
        Ragged: if it is not a list of equally long lists of numbers.
    """
    if not isinstance(found, list) or not all(isinstance(row, list) for row in found):
        raise Ragged("expected a list of rows such as [[1, 2], [3, 4]], got something else")
    for i, row in enumerate(found):
        if len(row) != len(found[0]):
            raise _uneven(Text("row {i}", i=i), len(found[0]), len(row))
    return [
        [_number(i, j, cell, booleans) for j, cell in enumerate(row)] for i, row in enumerate(found)
    ]


def _check_separators(text: str) -> None:
    """Of a table that could not be read, say whether spaces or decimal commas are the reason."""
    for number, line in enumerate(text.splitlines()[:SEARCHED], 1):
        if len(line) > LONG:
            return
        if any(map(_decimal_commas, (line.split(";"), line.split("\t"), line.split()))):
            raise Ragged(
                "expected decimal points, line {number} has decimal commas: {shown}; "
                "write 0.5 for 0,5, and put commas, semicolons or tabs between numbers",
                number=number,
                shown=_shown(line),
            )
        if len(line.split()) > 1 and all(map(_is_number, line.split()[1:])):
            raise Ragged(
                "expected commas, semicolons or tabs between numbers, line {number} has "
                "spaces: {shown}; put commas there",
                number=number,
                shown=_shown(line),
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
        raise Ragged(f"not readable at line {line}: {error}", f"第 {line} 行无法读取") from error


def _is_header(row: Sequence[str]) -> bool:
    names = row[0].strip().lower() in TOKEN_NAMES and len(row) > 1
    return names or not any(map(_is_number, row))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _row(line: int, row: Sequence[str], width: int, skip: int) -> list[float]:
    if len(row) != width:
        raise _uneven(Text("line {line}", line=line), width, len(row))
    for column, cell in enumerate(row[skip:], skip + 1):
        if not _is_number(cell):
            raise Ragged(
                "expected a number in line {line}, column {column} (counted from 1), got "
                "{shown}; put tokens into the first column of every row",
                line=line,
                column=column,
                shown=_shown(cell),
            )
    return [float(cell) for cell in row[skip:]]


def _number(row: int, column: int, cell: object, booleans: bool) -> float:
    number = isinstance(cell, int | float) and (booleans or not isinstance(cell, bool))
    try:
        return float(cell if number else "x")  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        raise Ragged(
            "expected a number in row {row}, column {column} (counted from 0), got "
            "{shown}; replace it",
            row=row,
            column=column,
            shown=_shown(cell),
        ) from None


def _uneven(en: str, zh: str, width: int, got: int) -> Ragged:
    return Ragged(
        f"expected {width} cells in {en} as in the first row, got {got}; make the rows equal",
        f"{zh}应与首行一样有 {width} 格，收到 {got} 格；请使各行等长",
    )


def _shown(cell: object) -> str:
    text = clean(repr(cell))
    return text if len(text) <= 40 else text[:39] + "…"
