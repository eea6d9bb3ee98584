"""Tables and blocks of numbers: which lines make one, and the arrays in it."""

import re
from collections.abc import Sequence

from headwise.check.article_lines import Line, is_array_row, is_table_row
from headwise.check.equations import Equation
from headwise.check.expression_reader import Reader
from headwise.check.expression_tree import (
    Cell,
    Grid,
    Node,
    Stack,
    Token,
    pairs,
    printed,
    scalar,
    vector,
)
from headwise.check.labels import read_label


def source_of(tokens: Sequence[Token], text: str) -> str:
    """The part of a text that some tokens cover."""
    return text[tokens[0].start : tokens[-1].end] if tokens else ""


Row = list[list[Token]]


def group_lines(lines: list[Line]) -> list[list[Line]]:
    """The lines, with those that make one table or one block of numbers put together."""
    groups: list[list[Line]] = []
    for line in lines:
        last = groups[-1][-1] if groups else None
        if last is not None and _one_array(last, line):
            groups[-1].append(line)
        else:
            groups.append([line])
    return groups


def _one_array(last: Line, line: Line) -> bool:
    """Whether two lines are rows of the same table, or of the same block of numbers."""
    if is_table_row(line) or is_table_row(last):
        return is_table_row(line) and is_table_row(last)
    near = line.tokens[0].line - last.tokens[-1].line <= 1
    return near and is_array_row(line) and is_array_row(last)


def table_equations(
    lines: list[Line], text: str, *, named: bool = False
) -> tuple[str, list[Equation]]:
    """The words of a table, and its arrays as equations.

    With ``named``, the text before names the table, and words in its margins are tokens.
    """
    if not is_table_row(lines[0]):
        rows = [tuple(_cell([t]) for t in line.tokens if t.kind != "comma") for line in lines]
        return "", [_equation(lines[0].tokens[0].line, [], Grid(tuple(rows), 2))]
    cells = [_cells(line) for line in lines if not _is_ruler(line)]
    if not cells:
        return "", []
    ruled = len(cells) < len(lines)
    head, body = cells[0], cells[1:]
    titles = [source_of(cell, text) for cell in head]
    labelled = bool(body) and all(row and _cell(row[0]) is None for row in body)
    if body and _is_title(head, body, ruled=ruled):
        return " ".join(titles), _with_titles(titles, body, text, labelled, named)
    return "", _matrix([row[labelled:] for row in cells], lines[0].tokens[0].line, "")


def _is_ruler(line: Line) -> bool:
    return all(token.kind == "pipe" or token.text in ("-", ":") for token in line.tokens)


def _is_title(head: Row, body: list[Row], *, ruled: bool) -> bool:
    """Whether the first row names the columns: in words, or by whole numbers over decimals."""
    numbers = [cell for tokens in head[1:] if (cell := _cell(tokens)) is not None]
    if not ruled and _cell(head[0]) is not None:
        return False
    decimal = any("." in token.text for row in body for cell in row for token in cell)
    decimal = decimal or (not ruled and _cell(body[0][0]) is None)
    return not numbers or (decimal and all(number.text.isdigit() for number in numbers))


def _cells(line: Line) -> Row:
    cells: Row = [[]]
    for token in line.tokens:
        if token.kind == "pipe":
            cells.append([])
        else:
            cells[-1].append(token)
    cells = cells if cells[0] else cells[1:]
    return cells if cells and cells[-1] else cells[:-1]


def _cell(tokens: list[Token]) -> Cell:
    inside = [token for token in tokens if token.kind not in ("math", "display", "newline")]
    if len(inside) == 1 and inside[0].kind in ("num", "blocked"):
        return printed(inside[0].text, inside[0].line, inside[0].start)
    return None


def _with_titles(
    titles: list[str], body: list[Row], text: str, labelled: bool, named: bool
) -> list[Equation]:
    """Columns that each name a quantity, rows that each name one, or a matrix with labels."""
    grouped = _grouped(titles, body)
    if grouped:
        return grouped
    above = [read_label(title).keys for title in titles]
    names = [source_of(row[0], text) for row in body] if labelled else []
    square = len(names) > 1 and names == titles[1 : len(names) + 1]
    words = square or _are_tokens(names, named)
    columns = [keys[0] for keys in above[labelled:] if keys]
    few = named and 2 * len(columns) <= len(above) - labelled
    if len(set(columns)) > 1 and not square and not few:
        return _columns(titles, body)
    rows_named = not words and any(read_label(name).keys for name in names)
    if labelled and (rows_named or any(_array(cell) for row in body for cell in row[1:])):
        return [equation for row in body for equation in _pair(row, titles, text)]
    start = body[0][0][0].line if body[0] and body[0][0] else 0
    corner = titles[0] if labelled and above and above[0] else ""
    if words and above[0] and above[0][0].lower() in ("q", "k", "x"):
        corner = ""  # it says what the rows are, not what the table holds
    return _matrix([row[labelled:] for row in body], start, corner)


_NUMBERED_NAME = re.compile(r"([A-Za-z\u3040-\u9fff]{1,8})[ _]?\{?[0-9]{1,2}\}?")
_WORD = re.compile(r"[\W_]{0,3}[A-Za-z\u3400-\u9fff'-]+[\W_]{0,3}")


def _are_tokens(names: list[str], named: bool) -> bool:
    """Whether a named table's first column holds tokens: words of which some name no quantity."""
    numbered = [_NUMBERED_NAME.fullmatch(name.strip(" *`$")) for name in names]
    if named and names and all(numbered) and len({m[1] for m in numbered if m}) == 1:
        return True
    plain = [bool(_WORD.fullmatch(name)) and len(name) > 1 for name in names]
    ours = [bool(read_label(name).keys) for name in names]
    return named and bool(names) and all(plain) and not all(ours)


_NUMBERED = re.compile(r"\W{0,3}([A-Za-z])\W{0,3}([0-9]{1,2})\W{0,3}")


def _grouped(titles: list[str], body: list[Row]) -> list[Equation]:
    """Matrices side by side in one table, as under q1, q2, k1, k2; [] for any other table."""
    groups: dict[str, list[int]] = {}
    for j, title in enumerate(titles):
        if match := _NUMBERED.fullmatch(title):
            groups.setdefault(match[1], []).append(j)
    if len(groups) < 2 or not all(len(columns) > 1 for columns in groups.values()):
        return []
    result = []
    for name, columns in groups.items():
        rows = tuple(
            tuple(_cell(row[j]) if j < len(row) else None for j in columns) for row in body
        )
        lines = [cell.line for row in rows for cell in row if cell is not None]
        if lines:
            result.append(_equation(lines[0], [name.upper()], Grid(rows, 2)))
    return result


def _columns(titles: list[str], body: list[Row]) -> list[Equation]:
    result = []
    for j, title in enumerate(titles):
        cells = tuple(_cell(row[j]) if j < len(row) else None for row in body)
        lines = [cell.line for cell in cells if cell is not None]
        if lines:
            result.append(_equation(lines[0], [title], Grid((cells,), min(len(cells) - 1, 1))))
    return result


def _pair(row: Row, titles: list[str], text: str) -> list[Equation]:
    """A row whose first cell names what the others hold."""
    label = source_of(row[0], text)
    line = row[0][0].line if row[0] else 0
    cells = tuple(_cell(cell) for cell in row[1:])
    if len(cells) > 1 and all(cell is not None for cell in cells):
        return [_equation(line, [label], vector(cells))]
    result = []
    for title, tokens in zip(titles[1:], row[1:], strict=False):
        array, cell = _array(tokens), _cell(tokens)
        if array is not None:
            result.append(_equation(line, [label, title], array))
        elif cell is not None:
            result.append(_equation(line, [label], scalar(cell)))
    return result


def _array(tokens: list[Token]) -> Grid | Stack | None:
    inside = [token for token in tokens if token.kind not in ("math", "display")]
    pair = pairs(inside)
    if not inside or pair.get(0) != len(inside) - 1:
        return None
    return Reader(inside, pair).array(0)


def _matrix(rows: list[Row], line: int, label: str) -> list[Equation]:
    cells = tuple(tuple(_cell(cell) for cell in row) for row in rows)
    if not any(cell is not None for row in cells for cell in row):
        return []
    return [_equation(line, [label] if label else [], Grid(cells, min(len(cells), 2)))]


def _equation(line: int, labels: list[str], node: Node) -> Equation:
    return Equation(line, labels=labels, nodes=[node], related=True)
