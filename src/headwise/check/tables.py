"""Tables of Markdown and HTML, and plain rows of numbers, read as the arrays they are."""

import re

from headwise.check.chains import Chain
from headwise.check.expression import Reader
from headwise.check.lines import Line, is_array_row
from headwise.check.nodes import Cell, Grid, Node, Stack, vector
from headwise.check.numbers import printed
from headwise.check.tokens import Token, pairs

Row = list[list[Token]]


def with_arrays(lines: list[Line]) -> list[list[Line]]:
    """The lines, with those that make one table or one block of numbers put together."""
    groups: list[list[Line]] = []
    for line in lines:
        last = groups[-1][-1] if groups else None
        follows = last is not None and line.tokens[0].line - last.tokens[-1].line <= 1
        html = last is not None and _is_row(line) and _is_row(last)
        if last is not None and _kind(line) and _kind(line) == _kind(last) and (follows or html):
            groups[-1].append(line)
        else:
            groups.append([line])
    return groups


def _kind(line: Line) -> str:
    if _is_row(line):
        return "table"
    return "numbers" if is_array_row(line) else ""


def _is_row(line: Line) -> bool:
    return line.count("pipe") >= 2 or line.tokens[0].kind == "pipe"


def table_chains(lines: list[Line], text: str, *, named: bool = False) -> tuple[str, list[Chain]]:
    """What a table says in words, and its arrays as chains.

    ``named`` says that a caption or a heading tells what the whole table is: then words in its
    margins are tokens, though one may be "cat" or "key".
    """
    if not _is_row(lines[0]):
        rows = [tuple(_cell([t]) for t in line.tokens if t.kind != "comma") for line in lines]
        return "", [Chain(lines[0].tokens[0].line, nodes=[Grid(tuple(rows), 2)], related=True)]
    rows_ = [row for row in map(_cells, lines) if not _is_ruler(row)]
    head, body = rows_[0], rows_[1:]
    titles = [_said(cell, text) for cell in head]
    labelled = bool(body) and all(row and _cell(row[0]) is None for row in body)
    if body and _is_title(head, body):
        return " ".join(titles), _with_titles(titles, body, text, labelled, named)
    return "", _matrix([row[labelled:] for row in rows_], lines[0].tokens[0].line, "")


def _is_title(head: Row, body: list[Row]) -> bool:
    """Whether the first row names the columns: in words, or by whole numbers over decimals."""
    numbers = [cell for tokens in head[1:] if (cell := _cell(tokens)) is not None]
    decimal = any("." in token.text for row in body for cell in row for token in cell)
    return not numbers or (decimal and all(number.text.isdigit() for number in numbers))


def _cells(line: Line) -> Row:
    """The cells of one line, without the bars at its ends."""
    cells: Row = [[]]
    for token in line.tokens:
        if token.kind == "pipe":
            cells.append([])
        else:
            cells[-1].append(token)
    if cells and not cells[0]:
        cells = cells[1:]
    return cells[:-1] if cells and not cells[-1] else cells


def _is_ruler(row: Row) -> bool:
    return all(token.text in ("-", ":") for cell in row for token in cell)


def _said(tokens: list[Token], text: str) -> str:
    return text[tokens[0].start : tokens[-1].end] if tokens else ""


def _cell(tokens: list[Token]) -> Cell:
    """The number that a cell is, or None."""
    inside = [token for token in tokens if token.kind not in ("math", "display", "newline")]
    if len(inside) == 1 and inside[0].kind in ("num", "blocked"):
        return printed(inside[0].text, inside[0].line, inside[0].start)
    return None


def _with_titles(
    titles: list[str], body: list[Row], text: str, labelled: bool, named: bool
) -> list[Chain]:
    """Columns that each name a quantity, rows that each name one, or a matrix with labels."""
    from headwise.check.labels import read_label

    above = [read_label(title).keys for title in titles]
    names = [_said(row[0], text) for row in body] if labelled else []
    square = len(names) > 1 and names == titles[1 : len(names) + 1]
    words = square or _are_tokens(names, named)
    columns = [keys[0] for keys in above[labelled:] if keys]
    few = named and 2 * len(columns) <= len(above) - labelled
    if len(set(columns)) > 1 and not square and not few:
        return _columns(titles, body)
    if labelled and not words and any(read_label(name).keys for name in names):
        return [chain for row in body for chain in _pair(row, titles, text)]
    if labelled and any(_array(cell) for row in body for cell in row[1:]):
        return [chain for row in body for chain in _pair(row, titles, text)]
    start = body[0][0][0].line if body[0] and body[0][0] else 0
    corner = titles[0] if labelled and above and above[0] else ""
    if words and above[0] and above[0][0].lower() in ("q", "k", "x"):
        corner = ""  # it says what the rows are, not what the table holds
    return _matrix([row[labelled:] for row in body], start, corner)


_WORD = re.compile(r"[\W_]{0,3}[A-Za-z\u3400-\u9fff'-]+[\W_]{0,3}")


def _are_tokens(names: list[str], named: bool) -> bool:
    """Whether words in the first column are tokens of a sequence, not names of quantities.

    They are where the table as a whole is named and some of the words name nothing.
    """
    from headwise.check.labels import read_label

    plain = [bool(_WORD.fullmatch(name)) and len(name) > 1 for name in names]
    ours = [bool(read_label(name).keys) for name in names]
    return named and bool(names) and all(plain) and not all(ours)


def _columns(titles: list[str], body: list[Row]) -> list[Chain]:
    found = []
    for j, title in enumerate(titles):
        cells = tuple(_cell(row[j]) if j < len(row) else None for row in body)
        if any(cell is not None for cell in cells):
            line = next(cell.line for cell in cells if cell is not None)
            node = vector(cells) if len(cells) > 1 else Grid((cells,), 0)
            found.append(Chain(line, labels=[title], nodes=[node], related=True))
    return found


def _pair(row: Row, titles: list[str], text: str) -> list[Chain]:
    """A row whose first cell names what the others hold."""
    label = _said(row[0], text)
    line = row[0][0].line if row[0] else 0
    cells = tuple(_cell(cell) for cell in row[1:])
    if len(cells) > 1 and all(cell is not None for cell in cells):
        return [Chain(line, labels=[label], nodes=[vector(cells)], related=True)]
    found = []
    for title, tokens in zip(titles[1:], row[1:], strict=False):
        node = _array(tokens)
        cell = _cell(tokens)
        if node is not None or cell is not None:
            labels = [label, title] if node is not None else [label]
            made: Node = node if node is not None else Grid(((cell,),), 0)
            found.append(Chain(line, labels=labels, nodes=[made], related=True))
    return found


def _array(tokens: list[Token]) -> Grid | Stack | None:
    inside = [token for token in tokens if token.kind not in ("math", "display")]
    pair = pairs(inside)
    if not inside or pair.get(0) != len(inside) - 1:
        return None
    return Reader(inside, pair).array(0)


def _matrix(rows: list[Row], line: int, label: str) -> list[Chain]:
    cells = tuple(tuple(_cell(cell) for cell in row) for row in rows)
    if not any(cell is not None for row in cells for cell in row):
        return []
    grid = Grid(cells, 2) if len(cells) > 1 else Grid(cells, 1)
    return [Chain(line, labels=[label] if label else [], nodes=[grid], related=True)]
