"""An article as statements: each equation or table with what its label and context say."""

import re
from dataclasses import dataclass, field, replace

from headwise.check.article_lines import Line, logical_lines
from headwise.check.asides import is_mask, is_other_layer, is_other_section, is_summary, is_supposed
from headwise.check.equations import Equation, parse_equations
from headwise.check.expression_tree import BadArticle, Grid, Node, Stack, leaves
from headwise.check.labels import Hint, IndexRef, combined, read_label, read_words
from headwise.check.printed_code import PrintedCode, is_code
from headwise.check.tables import group_lines, source_of, table_equations

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
            words = source_of(group[0].tokens, self.text)
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
            self._add(equation)
        if equations and not all(equation.bare for equation in equations):
            self._take_ending(words, equations, last.line)

    def _take_ending(self, words: str, equations: list[Equation], line: int) -> None:
        """Take the words at the end of a line with numbers as the lead of what follows."""
        ends = equations[-1]
        if not ends.bare and any(map(_holds_numbers, equations)):
            return
        if words.rstrip("$`* ")[-1:] in (":", "=") or ends.bare:
            labels = [*ends.labels, *ends.after] if ends.bare else []
            self.context.take(_SENTENCES.split(words.rstrip(" .。"))[-1], line, labels)

    def _add(self, equation: Equation) -> None:
        """Keep an equation with numbers as a statement."""
        if not any(leaves(node) for node in equation.nodes):
            self.context.caption = self.context.caption if equation.bare else None
            return
        if len(self.statements) >= MOST_STATEMENTS:
            raise BadArticle(
                "more than {most} arrays and equations; cut out the worked example",
                most=MOST_STATEMENTS,
            )
        made = [_statement(e, self.context, self.code) for e in _unstacked(equation)]
        self.statements += made
        if not equation.bare:
            self.context.caption = None

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
    named = " ".join(equation.labels) if equation.labels else context.words
    aside = mask or other or is_supposed(words) or is_summary(named)
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
