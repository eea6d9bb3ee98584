"""An article as statements: each equation or table with what its label and context say."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headwise.check.article_lines import Line, is_array_row, is_table_row, logical_lines
from headwise.check.asides import is_mask, is_other_layer, is_supposed
from headwise.check.equations import Equation, parse_equations
from headwise.check.expression_reader import Reader
from headwise.check.expression_tree import (
    Cell,
    Grid,
    Node,
    Stack,
    Token,
    leaves,
    pairs,
    printed,
    scalar,
    vector,
)
from headwise.check.labels import Hint, IndexRef, combined, read_label, read_words

SENTENCE = 60  # a label longer than this is running text, in which a lone letter is no symbol


@dataclass(frozen=True)
class Statement:
    """An equation, the meaning of its own label, and that of its context, the nearest first.

    ``aside`` is whether it is no claim about the attention, and ``mask`` whether it is a mask.
    """

    equation: Equation
    own: Hint
    around: tuple[Hint, ...]
    aside: bool = False
    mask: bool = False

    @property
    def label(self) -> str:
        """The words and symbols on its left."""
        return " ".join(self.equation.labels)

    @property
    def context_keys(self) -> tuple[str, ...]:
        """The quantities that the nearest context with any means."""
        return next((hint.keys for hint in self.around if hint.keys), ())


@dataclass(frozen=True)
class Article:
    """The statements of an article in order, and its headings: level, start and end."""

    statements: list[Statement]
    headings: list[tuple[int, int, int]]


@dataclass
class _Context:
    """The headings above the current statement, and the lines that lead to it."""

    headings: list[tuple[int, Hint, bool]] = field(default_factory=list)
    lead: list[Hint] = field(default_factory=list)
    words: str = ""

    def hints(self) -> tuple[Hint, ...]:
        return (*self.lead, *(hint for _, hint, _ in reversed(self.headings)))


def read_statements(text: str) -> Article:
    """Every statement of an article that holds numbers, and every label, in order."""
    context = _Context()
    result: list[Statement] = []
    headings: list[tuple[int, int, int]] = []
    for group in group_lines(logical_lines(text)):
        if len(group) > 1:
            named = any(hint.keys for hint in context.hints())
            words, equations = table_equations(group, text, named=named)
        else:
            words, equations = _source(group[0].tokens, text), parse_equations(group[0], text)
        level = group[0].heading
        if level:
            headings.append((level, group[0].tokens[0].start, group[0].tokens[-1].end))
            above = [entry for entry in context.headings if entry[0] < level]
            other = is_other_layer(words) and not read_label(words, prose=True).keys
            context = _Context([*above, (level, read_label(words, prose=True), other)])
            continue
        if all(equation.bare for equation in equations):
            hint = read_label(words, prose=len(words) > SENTENCE)
            context.words = words[-SENTENCE * 3 :]
            if hint != Hint():
                context.lead = [hint, *context.lead[:1]]
        for equation in equations:
            result += [_statement(part, context) for part in _unstacked(equation)]
    return Article(result, headings)


def _source(tokens: Sequence[Token], text: str) -> str:
    return text[tokens[0].start : tokens[-1].end] if tokens else ""


def _unstacked(equation: Equation) -> list[Equation]:
    """One equation for each head of an array with three axes."""
    stack = next((node for node in equation.nodes if isinstance(node, Stack)), None)
    if stack is None:
        return [equation]
    return [
        replace(equation, nodes=[grid], labels=[*equation.labels, f"head<sup>({head})</sup>"])
        for head, grid in enumerate(stack.grids, start=1)
    ]


def _statement(equation: Equation, context: _Context) -> Statement:
    own = combined([read_label(label, prose=_is_prose(label)) for label in equation.labels])
    if any(label.startswith("head<sup>") for label in equation.labels):
        own = replace(own, head=IndexRef(own.head.number, "ordinal") if own.head else None)
    line = read_label(equation.before, prose=True)
    after = combined([read_label(words, prose=True) for words in equation.after])
    for hint in (after, read_words(equation.before)):
        own = own.filled(replace(hint, keys=(), either=None))
    if not own.keys and not own.weight and context.lead:
        own = replace(own, weight=context.lead[0].weight, bias=context.lead[0].bias)
    words = " ".join((equation.before[-160:], *equation.labels))
    near = " ".join((context.words, *equation.labels)) if not own.keys else words
    mask = is_mask(equation, near)
    other = any(entry[2] for entry in context.headings) or is_other_layer(near[-200:])
    aside = mask or other or is_supposed(words)
    return Statement(equation, own, (line, *context.hints(), after), aside, mask)


def _is_prose(label: str) -> bool:
    return len(label) > SENTENCE or len(re.findall(r"[A-Za-z]{2,} ", label)) > 5


def is_empty(statement: Statement) -> bool:
    """Whether a statement holds no number that could be checked."""
    return statement.equation.bare or not any(leaves(node) for node in statement.equation.nodes)


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
    head, body = cells[0], cells[1:]
    titles = [_source(cell, text) for cell in head]
    labelled = bool(body) and all(row and _cell(row[0]) is None for row in body)
    if body and _is_title(head, body):
        return " ".join(titles), _with_titles(titles, body, text, labelled, named)
    return "", _matrix([row[labelled:] for row in cells], lines[0].tokens[0].line, "")


def _is_ruler(line: Line) -> bool:
    return all(token.kind == "pipe" or token.text in ("-", ":") for token in line.tokens)


def _is_title(head: Row, body: list[Row]) -> bool:
    """Whether the first row names the columns: in words, or by whole numbers over decimals."""
    numbers = [cell for tokens in head[1:] if (cell := _cell(tokens)) is not None]
    decimal = any("." in token.text for row in body for cell in row for token in cell)
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
    above = [read_label(title).keys for title in titles]
    names = [_source(row[0], text) for row in body] if labelled else []
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


_WORD = re.compile(r"[\W_]{0,3}[A-Za-z\u3400-\u9fff'-]+[\W_]{0,3}")


def _are_tokens(names: list[str], named: bool) -> bool:
    """Whether a named table's first column holds tokens: words of which some name no quantity."""
    plain = [bool(_WORD.fullmatch(name)) and len(name) > 1 for name in names]
    ours = [bool(read_label(name).keys) for name in names]
    return named and bool(names) and all(plain) and not all(ours)


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
    label = _source(row[0], text)
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
