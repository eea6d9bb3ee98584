"""An article as statements: each equation or table with what its label and context say."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headwise.check.article_lines import Line, is_array_row, is_table_row, logical_lines
from headwise.check.asides import is_mask, is_other_layer, is_other_section, is_supposed
from headwise.check.equations import Equation, parse_equations
from headwise.check.expression_reader import Reader
from headwise.check.expression_tree import (
    BadArticle,
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
from headwise.check.printed_code import PrintedCode, is_code

MOST_STATEMENTS = 3_000
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


_SENTENCES = re.compile(r"[.!?]\s+(?=\S)|[。！？]")


@dataclass
class _Context:
    """The headings above the current statement, and the lines that lead to it.

    ``caption`` is the line just above that may name an array: its line, hint and words.
    """

    headings: list[tuple[int, Hint, bool]] = field(default_factory=list)
    lead: list[Hint] = field(default_factory=list)
    words: str = ""
    caption: tuple[int, Hint] | None = None

    def hints(self) -> tuple[Hint, ...]:
        return (*self.lead, *(hint for _, hint, _ in reversed(self.headings)))

    def take(self, words: str, line: int, labels: list[str]) -> None:
        """Take a line without numbers as the lead of what follows; ``labels`` are its last."""
        hint = read_label(words, prose=len(words) > SENTENCE)
        self.words = words[-SENTENCE * 3 :]
        if hint != Hint():
            self.lead = [hint, *self.lead[:1]]
        short = len(words) <= SENTENCE or words.rstrip("$`* ")[-1:] in (":", "=")
        last = _SENTENCES.split(words.rstrip(" .。"))[-1]
        named = combined([read_label(label, prose=_is_prose(label)) for label in labels])
        hint = named if named.keys or named.weight else read_label(last, prose=len(last) > SENTENCE)
        self.caption = (line, hint) if short and (hint.keys or hint.weight) else None


def read_statements(text: str) -> Article:
    """Every statement of an article that holds numbers, and every label, in order."""
    reader = _ArticleReader(text)
    for group in group_lines(logical_lines(text)):
        reader.read(group)
    return Article(reader.statements, reader.headings)


class _ArticleReader:
    """Walks the lines of an article and keeps the context of each statement."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.context = _Context()
        self.statements: list[Statement] = []
        self.headings: list[tuple[int, int, int]] = []
        self.code = PrintedCode()

    def read(self, group: list[Line]) -> None:
        """Read one line, or the lines of one table."""
        first, last = group[0].tokens[0], group[-1].tokens[-1]
        self.code.enter(group[0], self.text)
        if len(group) > 1:
            named = any(hint.keys or hint.weight for hint in self.context.hints())
            words, equations = table_equations(group, self.text, named=named)
        else:
            words = _source(group[0].tokens, self.text)
            equations = parse_equations(group[0], self.text)
        if group[0].heading:
            self._head(group[0].heading, words, (first.start, last.end))
            return
        if self._continues(group, equations):
            return
        if is_code(words, fenced=group[0].code):
            equations = [replace(e, nodes=_literals(e.nodes)) for e in equations]
        if all(equation.bare for equation in equations):
            ends = equations[-1] if equations else Equation(last.line)
            self.context.take(words, last.line, [*ends.labels, *ends.after])
        for equation in equations:
            if not any(leaves(node) for node in equation.nodes):
                self.context.caption = self.context.caption if equation.bare else None
                continue
            if len(self.statements) >= MOST_STATEMENTS:
                raise BadArticle(
                    "more than {most} arrays and equations; cut out the worked example",
                    most=MOST_STATEMENTS,
                )
            made = [_statement(e, self.context, self.code) for e in _unstacked(equation)]
            self.statements += made
            if not equation.bare:
                self.context.caption = None
        mixed = equations and not all(equation.bare for equation in equations)
        if mixed and (equations[-1].bare or not any(map(_holds_numbers, equations))):
            ending = _SENTENCES.split(words.rstrip(" .。"))[-1]
            if words.rstrip("$`* ")[-1:] in (":", "=") or equations[-1].bare:
                ends = equations[-1]
                labels = [*ends.labels, *ends.after] if ends.bare else []
                self.context.take(ending, last.line, labels)

    def _head(self, level: int, words: str, place: tuple[int, int]) -> None:
        hint = read_label(words, prose=True)
        self.headings.append((level, *place))
        above = [entry for entry in self.context.headings if entry[0] < level]
        other = is_other_section(words)
        self.context = _Context([*above, (level, hint, other)])
        if hint.keys and len(words) <= SENTENCE:
            self.context.caption = (place[0], hint)

    def _continues(self, group: list[Line], equations: list[Equation]) -> bool:
        """Add a row of numbers in brackets to the rows right above it."""
        last = self.statements[-1].equation if self.statements else None
        row = _lone_row(equations) if len(group) == 1 else None
        if last is None or row is None or not last.nodes or last.after:
            return False
        end = last.nodes[-1]
        above = isinstance(end, Grid) and end.dims > 0 and bool(end.cells)
        if not above or not isinstance(end, Grid) or len(end.rows[-1]) != len(row.rows[0]):
            return False
        if row.cells[0].line - end.cells[-1].line != 1:
            return False
        last.nodes[-1] = Grid((*end.rows, *row.rows), 2)
        return True


def _literals(nodes: list[Node]) -> list[Node]:
    """The matrices in a line of code; its other numbers are arguments."""
    return [n for n in nodes if isinstance(n, Stack) or (isinstance(n, Grid) and n.dims == 2)]


def _lone_row(equations: list[Equation]) -> Grid | None:
    """The vector that is all of a line."""
    if len(equations) != 1 or equations[0].labels or equations[0].after or equations[0].related:
        return None
    nodes = equations[0].nodes
    lone = nodes[0] if len(nodes) == 1 else None
    return lone if isinstance(lone, Grid) and lone.dims == 1 and lone.cells else None


def _holds_numbers(equation: Equation) -> bool:
    """Whether an equation has an array or a decimal, rather than sizes only."""
    grids = [leaf for node in equation.nodes for leaf in leaves(node)]
    return any(g.dims > 0 or any("." in c.text for c in g.cells) for g in grids)


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


_CONSTRUCTOR = re.compile(
    r"\W*(?:(?:np|torch|numpy)\.)?(?:tensor|array|matrix|ans)?\W*", re.IGNORECASE
)


def _statement(equation: Equation, context: _Context, code: PrintedCode) -> Statement:
    own = combined([read_label(label, prose=_is_prose(label)) for label in equation.labels])
    if any(label.startswith("head<sup>") for label in equation.labels):
        own = replace(own, head=IndexRef(own.head.number, "ordinal") if own.head else None)
    line = read_label(equation.before, prose=True) if equation.before else Hint()
    after = combined([read_label(words, prose=True) for words in equation.after])
    for hint in (after, read_words(equation.before)):
        own = own.filled(replace(hint, keys=(), either=None))
    words = " ".join((equation.before[-160:], *equation.labels))
    if not own.keys and not own.weight:
        own, above = _from_above(equation, own, context, code)
        words = f"{words} {above}"
    elif equation.nodes:
        own = code.defined(own, equation)
    near = " ".join((context.words, words)) if not equation.labels else words
    mask = is_mask(equation, near)
    other = any(entry[2] for entry in context.headings) or is_other_layer(near[-200:])
    aside = mask or other or is_supposed(words)
    return Statement(equation, own, (line, *context.hints(), after), aside, mask)


def _from_above(
    equation: Equation, own: Hint, context: _Context, code: PrintedCode
) -> tuple[Hint, str]:
    """The label of an array without one, and its words: what the code printed, or a line above."""
    bare_array = all(_CONSTRUCTOR.fullmatch(label) for label in equation.labels)
    if bare_array and any(grid.dims > 0 for grid in equation.grids):
        printed_by = code.next_label()
        if printed_by is not None:
            hint = code.defined(read_label(printed_by), replace(equation, labels=[printed_by]))
            return replace(hint, head=own.head or hint.head), printed_by
        if context.caption is not None and equation.start >= 0:
            hint = context.caption[1]
            return replace(hint, head=own.head or hint.head), context.words
    if context.lead:
        own = replace(own, weight=context.lead[0].weight, bias=context.lead[0].bias)
    return own, ""


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
    if not cells:
        return "", []
    ruled = len(cells) < len(lines)
    head, body = cells[0], cells[1:]
    titles = [_source(cell, text) for cell in head]
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
