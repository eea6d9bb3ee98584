"""Parse a line into equations such as ``S_1 = 0.5×0.5 + 1.1×1.1 = 1.46``."""

from dataclasses import dataclass, field, replace

from headwise.check.article_lines import Line
from headwise.check.expression_reader import Reader
from headwise.check.expression_tree import Grid, Node, Token, numbers, pairs, vector

_AND = frozenset(("and", "和", "与", "及", "以及", "und", "oraz", "と", "與", "跟"))
_SHORT_AND = frozenset(("y", "i"))  # Spanish and Polish; a symbol where no number stands before
BEFORE, MOST_ON_LINE = 200, 100
"""How many characters before an equation are read with it, and for how many on one line."""
_STARTS = frozenset(("num", "blocked", "open", "begin", "op", "name", "command"))


@dataclass
class Equation:
    r"""Expressions stated to be equal, with the text around them.

    ``labels`` are the words and symbols on the left, such as ``\\text{head}_1[0]``, ``before`` is
    the earlier text of the line, and ``after`` are the words after the last number. ``related`` is
    whether a sign such as = or : joins the parts, and ``tied`` are the nodes that follow the node
    before them right after such a sign.
    """

    line: int
    before: str = ""
    labels: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    related: bool = False
    tied: set[int] = field(default_factory=set)

    @property
    def chains(self) -> list[list[Node]]:
        """The nodes, with those that signs say to be equal put together."""
        result: list[list[Node]] = []
        for at, node in enumerate(self.nodes):
            if at in self.tied and result:
                result[-1].append(node)
            else:
                result.append([node])
        return result

    @property
    def start(self) -> int:
        """The offset of the first printed number, or -1."""
        return min((cell.start for node in self.nodes for cell in numbers(node)), default=-1)

    def flush(self) -> None:
        """Move the words after the last number to the labels: more numbers follow."""
        self.labels += self.after
        self.after = []

    @property
    def grids(self) -> list[Grid]:
        """The nodes that are printed numbers or arrays."""
        return [node for node in self.nodes if isinstance(node, Grid)]

    @property
    def bare(self) -> bool:
        """Whether the equation has only whole numbers in running text: sizes, indices, counts."""
        lone = all(isinstance(node, Grid) and node.dims == 0 for node in self.nodes)
        texts = [cell.text.removesuffix(".") for node in self.nodes for cell in numbers(node)]
        return lone and not (self.nodes and (self.related or "." in "".join(texts)))


@dataclass(frozen=True)
class Item:
    """A part of a line, of the kind "text", "node", "rel" or "comma"."""

    kind: str
    text: str
    start: int
    line: int
    node: Node | None = None


def parse_equations(line: Line, text: str) -> list[Equation]:
    """The equations of one line; ``text`` is the article that the token offsets refer to."""
    return _group(_absorbed(_items(line, text)), line, text)


def _items(line: Line, text: str) -> list[Item]:
    tokens = line.tokens
    reader = Reader(tokens, pairs(list(tokens)))
    result: list[Item] = []
    i, start = 0, -1
    while i < len(tokens):
        token = tokens[i]
        node, after = None, i
        part_of_name = i > 0 and not token.spaced and tokens[i - 1].kind in ("sub", "sup")
        root = token.text == "√" and (i == 0 or tokens[i - 1].text != "/")
        if (token.kind in _STARTS or root) and not part_of_name:
            node, after = reader.node(i, len(tokens))
        if node is not None and _is_list_mark(reader, i, after):
            node, after, kind = None, reader.pair[i] + 1, "comma"
        else:
            kind = "node" if node is not None else _kind(tokens, i)
        last = i + 1 == len(tokens) or tokens[i + 1].spaced
        if token.text in (".", "!", "?") and not token.spaced and last:
            kind = "comma"
        if kind == "text":
            start = i if start < 0 else start
            i = reader.pair[i] + 1 if _symbolic(reader, i) else _past_name(reader, i)
            continue
        if start >= 0:
            result.append(_words(tokens, start, i, text))
            start = -1
        result.append(Item(kind, token.text, token.start, token.line, node))
        i = max(after, i + 1)
    if start >= 0:
        result.append(_words(tokens, start, len(tokens), text))
    return result


def _words(tokens: tuple[Token, ...], start: int, end: int, text: str) -> Item:
    first = tokens[start]
    return Item("text", text[first.start : tokens[end - 1].end], first.start, first.line)


def _absorbed(items: list[Item]) -> list[Item]:
    """Join the number in ``head 1`` with the words around it."""
    result: list[Item] = []
    words: list[str] = []
    for item, after in zip(items, [*items[1:], None], strict=True):
        whole = isinstance(item.node, Grid) and item.node.dims == 0 and item.text.isdigit()
        index = whole and len(item.text) <= 3 and (after is None or after.kind != "node")
        if words and (item.kind == "text" or index):
            words.append(item.text)
            continue
        _close_words(result, words)
        words = [item.text] if item.kind == "text" else []
        result.append(item)
    _close_words(result, words)
    return result


def _close_words(result: list[Item], words: list[str]) -> None:
    """Put the words that were gathered into the last item."""
    if len(words) > 1:
        result[-1] = replace(result[-1], text=" ".join(words))


def _kind(tokens: tuple[Token, ...], i: int) -> str:
    token = tokens[i]
    if token.kind in ("rel", "colon"):
        return "rel"
    if token.kind in ("comma", "pipe") or token.text in _AND:
        return "comma"
    if token.text in _SHORT_AND and 0 < i < len(tokens) - 1:
        joins = tokens[i - 1].kind in ("num", "close", "math") and tokens[i + 1].kind != "rel"
        return "comma" if joins and tokens[i + 1].spaced else "text"
    return "text"


def _is_list_mark(reader: Reader, i: int, after: int) -> bool:
    """Whether ``(2)`` numbers a step in running text, rather than being a number."""
    tokens, close = reader.tokens, reader.pair.get(i, -1)
    lone = tokens[i].text == "(" and close == i + 2 and tokens[i + 1].text.isdigit()
    if not lone or after != close + 1 or len(tokens[i + 1].text) > 2:
        return False
    begins = i == 0 or tokens[i - 1].kind == "comma" or tokens[i - 1].text in (".", "!", "?")
    named = after < len(tokens) and tokens[after].kind in ("name", "word", "math", "command")
    return begins and named and tokens[after].spaced


def _symbolic(reader: Reader, i: int) -> bool:
    """Whether brackets hold names only, as in ``Attention(Q, K, V)``."""
    if i not in reader.pair or reader.tokens[i].text != "(":
        return False
    inside = reader.tokens[i + 1 : reader.pair[i]]
    return all(t.text != "[" and t.kind != "begin" and "." not in t.text for t in inside)


def _past_name(reader: Reader, i: int) -> int:
    r"""Past one word, or a symbol with all its indices: ``\\text{head}_1[0]``, ``s(0, 1)``."""
    tokens, pair = reader.tokens, reader.pair
    named = tokens[i].kind in ("name", "command", "word")
    i += 1
    while named and i < len(tokens):
        if tokens[i].kind in ("sub", "sup"):
            i = reader.after_index(i)
        elif i in pair and (tokens[i].text == "{" or _is_index(reader, i)):
            i = pair[i] + 1
        else:
            break
    return min(i, len(tokens))


def _is_index(reader: Reader, i: int) -> bool:
    """Whether brackets hold whole numbers right after a name: ``[0]``, ``(0, 1)``, ``[1, :]``."""
    inside = reader.tokens[i + 1 : reader.pair[i]]
    whole = all(t.text.isdigit() or t.kind in ("comma", "colon") for t in inside)
    return whole and 0 < len(inside) <= 5 and not reader.tokens[i].spaced


def _group(items: list[Item], line: Line, text: str) -> list[Equation]:

    def before(end: int) -> str:
        if len(result) > MOST_ON_LINE:
            return ""
        return text[max(line.tokens[0].start, end - BEFORE) : end]

    result = [Equation(line.tokens[0].line)]
    fresh = False
    for at, item in enumerate(items):
        if item.kind == "comma":
            fresh = True
            continue
        if fresh:
            result.append(Equation(item.line, before(item.start)))
            fresh = False
        now = result[-1]
        if item.kind == "rel":
            if _starts_anew(items, at, now):
                label = now.after.pop()
                now = Equation(item.line, before(items[at - 1].start), [label])
                result.append(now)
            now.related = True
            now.flush()
        elif item.node is not None:
            now.flush()
            if now.nodes and at >= 2 and [i.kind for i in items[at - 2 : at]] == ["node", "rel"]:
                now.tied.add(len(now.nodes))
            now.nodes.append(item.node)
        else:
            (now.after if now.nodes else now.labels).append(item.text)
    return _vectors([c for c in result if c.nodes or c.labels or c.after])


def _starts_anew(items: list[Item], at: int, now: Equation) -> bool:
    """Whether a label between a number and a sign begins an equation: ``= 1.46 s_01 =``."""
    between = at >= 2 and items[at - 1].kind == "text" and items[at - 2].kind == "node"
    return between and len(now.after) > 0 and (len(now.labels) > 0 or not now.related)


def _vectors(result: list[Equation]) -> list[Equation]:
    """Join ``= 0.1, 0.2, 0.3`` into one vector."""
    out: list[Equation] = []
    for equation in result:
        last = out[-1] if out else None
        lone = len(equation.nodes) == 1 and not equation.related and not equation.labels
        if last is not None and last.related and last.nodes and lone:
            end, more = last.nodes[-1], equation.nodes[0]
            scalar = isinstance(more, Grid) and more.dims == 0
            decimal = scalar and any("." in cell.text for cell in numbers(more))
            if isinstance(end, Grid) and end.dims <= 1 and end.whole and decimal:
                last.nodes[-1] = vector((*end.rows[0], *numbers(more)))
                continue
        out.append(equation)
    return out
