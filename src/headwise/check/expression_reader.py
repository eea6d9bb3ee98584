"""Read sums, products and arrays of printed numbers. Nothing is ever evaluated as code."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from headwise.check.expression_tree import (
    MOST_NESTING,
    Apply,
    Cell,
    Grid,
    Node,
    Printed,
    Product,
    Quotient,
    Stack,
    Sum,
    Symbol,
    Token,
    is_matrix,
    printed,
    scalar,
    vector,
)

_FUNCTIONS = {
    **{name: name for name in ("softmax", "exp", "sqrt", "concat")},
    "cat": "concat",
    "√": "sqrt",
}
_WRAPPERS = ("\\text", "\\mathrm", "\\operatorname", "\\mathbf", "\\vec", "\\boldsymbol")
_VECTOR = re.compile(r"[vVxX][0-9]{0,2}$")
_BLANK = frozenset(("newline", "math", "display"))
_DIVIDE = frozenset(("/", "÷", "\\div"))


class Reader:
    """A reader of one line's tokens. ``node(i)`` gives the expression at i and where it ends."""

    def __init__(self, tokens: Sequence[Token], pair: dict[int, int]) -> None:
        self.tokens, self.pair, self.depth = tokens, pair, 0
        self._brackets: dict[int, Node | None] = {}
        self._arrays: dict[int, Grid | Stack | None] = {}

    def node(self, i: int, end: int) -> tuple[Node | None, int]:
        """The longest sum that starts at token i and stays before ``end``; None if none does."""
        self.depth += 1
        try:
            return (None, i) if self.depth > MOST_NESTING else self._sum(i, end)
        finally:
            self.depth -= 1

    def inner(self, i: int) -> Node | None:
        """The expression that fills the brackets opening at i."""
        last = self._trim(i + 1, self.pair[i])
        node, after = self.node(self._skip(i + 1, last), last)
        return node if after >= last else None

    def _sum(self, i: int, end: int) -> tuple[Node | None, int]:
        terms: list[tuple[int, Node]] = []
        while i < end:
            sign, start = 1, self._skip(i, end)
            if self._is(start, end, "op") and self.tokens[start].text in "+-":
                sign = -1 if self.tokens[start].text == "-" else 1
                start = self._skip(start + 1, end)
            elif terms and not (self._is(start, end, "num") and self.tokens[start].text[0] in "+-"):
                break  # no sign, not even one that belongs to the number, as in 1.4 -0.3
            term, after = self._product(start, end)
            if term is None:
                break
            terms.append((sign, term))
            i = after
        if len(terms) == 1:
            sign, term = terms[0]
            return (term if sign > 0 else _negative(term)), i
        return (Sum(tuple(terms)) if terms else None), i

    def _product(self, i: int, end: int) -> tuple[Node | None, int]:
        first, i = self._factor(i, end)
        if first is None:
            return None, i
        node, factors = first, [first]
        while i < end:
            start = self._skip(i, end)
            sign = self.tokens[start].text if self._is(start, end, "op") else ""
            opens = start in self.pair and self.tokens[start].kind in ("open", "begin")
            side_by_side = start < end and (opens or self._symbol(start, end)[0] is not None)
            if sign in ("+", "-") or not (sign or side_by_side):
                break
            at = self._skip(start + bool(sign), end)
            factor, after = self._factor(at, end)
            if factor is None and sign not in _DIVIDE:
                factor, after = self._symbol(at, end)
            if factor is None:
                break
            if sign in _DIVIDE:
                node = Quotient(node, factor)
                factors = [node]
            else:
                factors.append(factor)
                node = Product(tuple(factors))
            i = after
        return node, i

    def _symbol(self, i: int, end: int) -> tuple[Node | None, int]:
        r"""A vector by its name, as in ``0.376 v_1`` or ``0.376 \\mathbf{v}_1``."""
        if i >= end or not (self.tokens[i].text in _WRAPPERS or _VECTOR.match(self.tokens[i].text)):
            return None, i
        start, i = i, i + 1
        while i < end and not self.tokens[i].spaced:
            if self.tokens[i].kind in ("sub", "sup"):
                i = self.after_index(i)
            elif i in self.pair:
                i = self.pair[i] + 1
            else:
                break
        return (Symbol(self.tokens[start].text), i) if i <= end else (None, start)

    def after_index(self, i: int) -> int:
        """The token after an index that starts with the ``_`` or ``^`` at i."""
        return self.pair[i + 1] + 1 if i + 1 in self.pair else i + 2

    def _factor(self, i: int, end: int) -> tuple[Node | None, int]:
        self.depth += 1
        try:
            return (None, i) if self.depth > 4 * MOST_NESTING else self._one_factor(i, end)
        finally:
            self.depth -= 1

    def _one_factor(self, i: int, end: int) -> tuple[Node | None, int]:
        if i >= end:
            return None, i
        token = self.tokens[i]
        if token.kind in ("num", "blocked"):
            return scalar(printed(token.text, token.line, token.start)), i + 1
        if token.kind == "op" and token.text == "-":
            node, after = self._factor(i + 1, end)
            return (None if node is None else _negative(node)), after
        if i in self.pair and (token.kind == "open" or is_matrix(token)):
            after = self.pair[i] + 1
            if self._is(after, end, "sup"):  # ^T transposes it
                after = self.after_index(after)
            return self._bracket(i), after
        return self._function(i, end)

    def _bracket(self, i: int) -> Node | None:
        """``(a + b)`` is an expression, ``[a, b]`` and ``(a, b)`` are arrays."""
        if i not in self._brackets:
            array, is_round = self.array(i), self.tokens[i].text in "({"
            if is_round and (array is None or not _several(array)):
                self._brackets[i] = self.inner(i)
            else:
                self._brackets[i] = array
        return self._brackets[i]

    def _function(self, i: int, end: int) -> tuple[Node | None, int]:
        token = self.tokens[i]
        word = token.text.lower()
        if word in ("\\frac", "\\dfrac", "\\tfrac"):
            return self._fraction(i + 1, end)
        if token.text in ("e", "\\exp") and self._is(i + 1, end, "sup"):
            if i + 2 < end and self.tokens[i + 2].text == "e":
                return None, i
            node, after = self._factor(i + 2, end)
            return (None if node is None else Apply("exp", (node,))), after
        if word in _WRAPPERS and i + 1 in self.pair and self.pair[i + 1] == i + 3:
            word, i = self.tokens[i + 2].text.lower(), i + 3
        name = _FUNCTIONS.get(word.lstrip("\\"))
        start = self.after_index(i + 1) if self._is(i + 1, end, "sub") else i + 1
        if name is None or start >= end or self._nested(start):
            return None, i
        if start not in self.pair:
            node, after = self._factor(start, end) if name in ("sqrt", "softmax") else (None, i)
            return (None if node is None else Apply(name, (node,))), after
        args = self._arguments(start)
        return (Apply(name, args) if args else None), self.pair[start] + 1

    def _nested(self, i: int) -> bool:
        """Whether a root without brackets stands right before another one."""
        return self.tokens[i].text in ("√", "\\sqrt", "sqrt") and i not in self.pair

    def _arguments(self, i: int) -> tuple[Node, ...]:
        array = self.array(i)
        if array is not None and (self.tokens[i].text not in "({" or _several(array)):
            return (array,)
        result: list[Node] = []
        at, close = i + 1, self._trim(i + 1, self.pair[i])
        while at < close:
            node, after = self.node(self._skip(at, close), close)
            if node is None:
                return ()
            result.append(node)
            at = self._skip(after, close)
            if at < close and self.tokens[at].kind != "comma":
                return ()
            at += 1
        return tuple(result)

    def _fraction(self, i: int, end: int) -> tuple[Node | None, int]:
        if i in self.pair and self.pair[i] + 1 in self.pair:
            above, below = self.inner(i), self.inner(self.pair[i] + 1)
            after = self.pair[self.pair[i] + 1] + 1
            return (None if above is None or below is None else Quotient(above, below)), after
        if self._is(i, end, "num") and self.tokens[i].text.isdigit():
            token = self.tokens[i]
            if len(token.text) == 2:  # \frac12
                above, below = (scalar(printed(d, token.line, token.start)) for d in token.text)
                return Quotient(above, below), i + 1
        return None, i

    def array(self, i: int) -> Grid | Stack | None:
        """The array that opens at token i: numbers, rows of numbers, or matrices of them."""
        if i not in self._arrays:
            self._arrays[i] = self._array(i)
        return self._arrays[i]

    def _array(self, i: int) -> Grid | Stack | None:
        close = self.pair[i]
        outer: list[int] = []
        for j in range(i + 1, close):
            if j in self.pair and self._is_array(j) and (not outer or j > self.pair[outer[-1]]):
                outer.append(j)
        if not outer:
            return self._flat(i + 1, close)
        edges = zip([i, *(self.pair[j] for j in outer)], [*outer, close], strict=True)
        between = [t for left, right in edges for t in self.tokens[left + 1 : right]]
        if any(t.kind not in _BLANK and t.kind not in ("comma", "row") for t in between):
            return None
        arrays = [self.array(j) for j in outer]
        return _joined([array for array in arrays if array is not None], len(outer))

    def _is_array(self, j: int) -> bool:
        inside = self.tokens[j + 1 : self.pair[j]]
        is_tuple = self.tokens[j].text == "(" and any(token.kind == "comma" for token in inside)
        return self.tokens[j].text == "[" or is_matrix(self.tokens[j]) or is_tuple

    def _flat(self, start: int, close: int) -> Grid | None:
        matrix = self.tokens[start - 1].kind == "begin"
        parts = self._split(start, close, ("row",), ";")
        rows = [cells for part in parts if (cells := self._cells(*part, matrix))]
        if not any(cell is not None for row in rows for cell in row):
            return None
        if all(len(row) == 1 for row in rows):
            return vector(tuple(row[0] for row in rows))
        return vector(rows[0]) if len(rows) == 1 else Grid(tuple(rows), 2)

    def _cells(self, start: int, end: int, matrix: bool) -> tuple[Cell, ...]:
        parts = self._split(start, end, ("col", "comma"), "")
        filled = [(a, b) for a, b in parts if any(t.kind not in _BLANK for t in self.tokens[a:b])]
        if len(filled) == 1 and not matrix:
            inside = [t for t in self.tokens[slice(*filled[0])] if t.kind not in _BLANK]
            if len(inside) > 1 and all(t.kind in ("num", "blocked") for t in inside):
                return tuple(printed(t.text, t.line, t.start) for t in inside)
        return tuple(self._cell(*part) for part in filled)

    def _cell(self, start: int, end: int) -> Cell:
        last = self._trim(start, end)
        node, after = self.node(self._skip(start, last), last)
        if isinstance(node, Grid) and node.dims == 0 and after >= last:
            return node.rows[0][0]
        value = None if node is None or isinstance(node, Grid) else constant(node)
        if value is None or after < last:
            return None
        first = self.tokens[self._skip(start, last)]
        text = " ".join(t.text for t in self.tokens[start:last] if t.kind not in _BLANK)
        return Printed(text, value, 0.0, first.line, first.start)

    def _split(
        self, start: int, end: int, kinds: tuple[str, ...], mark: str
    ) -> list[tuple[int, int]]:
        parts, at, i = [], start, start
        while i < end:
            if i in self.pair:
                i = self.pair[i] + 1
                continue
            token = self.tokens[i]
            if (token.kind in kinds and token.text != ";") or (mark and token.text == mark):
                parts.append((at, i))
                at = i + 1
            i += 1
        return [*parts, (at, end)]

    def _is(self, i: int, end: int, kind: str) -> bool:
        return i < end and self.tokens[i].kind == kind

    def _skip(self, i: int, end: int) -> int:
        while i < end and self.tokens[i].kind in _BLANK:
            i += 1
        return i

    def _trim(self, start: int, end: int) -> int:
        while end > start and self.tokens[end - 1].kind in _BLANK:
            end -= 1
        return end


def _several(array: Grid | Stack) -> bool:
    return isinstance(array, Stack) or array.dims == 2 or len(array.rows[0]) > 1


def _joined(result: list[Grid | Stack], count: int) -> Grid | Stack | None:
    grids = [grid for grid in result if isinstance(grid, Grid)]
    if count == 1:
        lone = result[0] if result else None
        return vector(lone.rows[0]) if isinstance(lone, Grid) and lone.dims <= 1 else lone
    if len(grids) < count:
        return None
    if all(grid.dims <= 1 for grid in grids):
        return Grid(tuple(grid.rows[0] for grid in grids), 2)
    return Stack(tuple(grids)) if all(grid.dims == 2 for grid in grids) else None


def _negative(node: Node) -> Node:
    if isinstance(node, Grid) and node.dims == 0 and node.rows[0][0] is not None:
        cell = node.rows[0][0]
        return scalar(replace(cell, text="-" + cell.text, value=-cell.value))
    return Sum(((-1, node),))


def constant(node: Node) -> float | None:
    """The value of an expression of whole numbers, such as 1/2 or 1/√2; None for any other."""
    if isinstance(node, Grid):
        cell = node.rows[0][0] if node.dims == 0 else None
        return cell.value if cell is not None and cell.step in (0, 1) else None
    if isinstance(node, Quotient):
        above, below = constant(node.above), constant(node.below)
        return None if above is None or not below else above / below
    if isinstance(node, Apply) and node.name == "sqrt" and len(node.args) == 1:
        inside = constant(node.args[0])
        return math.sqrt(inside) if inside is not None and inside >= 0 else None
    if isinstance(node, Sum) and len(node.terms) == 1:
        inside = constant(node.terms[0][1])
        return None if inside is None else node.terms[0][0] * inside
    return None
