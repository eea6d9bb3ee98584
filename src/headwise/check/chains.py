"""A line as chains: what is said to be equal to what. ``S_1 = 0.5×0.5 + 1.1×1.1 = 1.46``."""

from dataclasses import dataclass, field

from headwise.check.expression import Reader
from headwise.check.lines import Line
from headwise.check.nodes import Grid, Node, leaves, vector
from headwise.check.tokens import Token, pairs

_AND = frozenset(("and", "和", "与", "及", "以及"))
_STARTS = frozenset(("num", "blocked", "open", "begin", "op", "name", "command"))


@dataclass
class Chain:
    r"""Things said to be equal, with what was said around them.

    Attributes:
        labels: the symbols and words that stand for it, such as ``\\text{head}_1[0]``.
        nodes: the numbers and expressions it is said to equal, in order.
        before: what stands earlier in the same line.
        line: the line of its first piece, from 1.
        after: the words after its last number.
        related: whether a sign such as = or : joins its parts.
    """

    line: int
    before: str = ""
    labels: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    related: bool = False

    def flush(self) -> None:
        """Count the words so far among the labels: more numbers follow."""
        self.labels += self.after
        self.after = []

    @property
    def grids(self) -> list[Grid]:
        """The nodes that are printed arrays or numbers by themselves."""
        return [node for node in self.nodes if isinstance(node, Grid)]

    @property
    def bare(self) -> bool:
        """Whether only whole numbers in running text stand here: sizes, indices, counts."""
        cells = [cell for node in self.nodes for leaf in leaves(node) for cell in leaf.cells]
        lone = all(isinstance(node, Grid) and node.dims == 0 for node in self.nodes)
        return not self.nodes or (
            lone and not self.related and all("." not in c.text.removesuffix(".") for c in cells)
        )


@dataclass(frozen=True)
class Item:
    """One piece of a line: "text", "node", "rel" or "comma"."""

    kind: str
    text: str
    start: int
    line: int
    node: Node | None = None


def chains(line: Line, text: str) -> list[Chain]:
    """The chains of one line; ``text`` is the whole article that the tokens point into."""
    return _group(_absorbed(_items(line, text)), line, text)


def _items(line: Line, text: str) -> list[Item]:
    tokens = line.tokens
    reader = Reader(tokens, pairs(list(tokens)))
    found: list[Item] = []
    i, start = 0, -1
    while i < len(tokens):
        token = tokens[i]
        node, after = (None, i)
        if (token.kind in _STARTS or token.text == "√") and not _part_of_name(tokens, i):
            node, after = reader.node(i, len(tokens))
        kind = "node" if node is not None else _kind(token)
        if token.text in (".", "!", "?") and not token.spaced and _ends(tokens, i):
            kind = "comma"
        if kind == "text":
            start = i if start < 0 else start
            i = reader.pair[i] + 1 if _symbolic(reader, i) else _past_name(reader, i)
            continue
        if start >= 0:
            found.append(_words(tokens, start, i, text))
            start = -1
        found.append(Item(kind, token.text, token.start, token.line, node))
        i = max(after, i + 1)
    if start >= 0:
        found.append(_words(tokens, start, len(tokens), text))
    return found


def _words(tokens: tuple[Token, ...], start: int, end: int, text: str) -> Item:
    first = tokens[start]
    return Item("text", text[first.start : tokens[end - 1].end], first.start, first.line)


def _absorbed(items: list[Item]) -> list[Item]:
    """With the number in ``head 1`` made part of the words around it."""
    found: list[Item] = []
    for at, item in enumerate(items):
        after = items[at + 1].kind if at + 1 < len(items) else "comma"
        if found and found[-1].kind == "text":
            last = found[-1]
            joins = item.kind == "text" or (_counts(item) and after != "node")
            if joins:
                found[-1] = Item("text", f"{last.text} {item.text}", last.start, last.line)
                continue
        found.append(item)
    return found


def _counts(item: Item) -> bool:
    """Whether it is a lone whole number, as an index is."""
    whole = isinstance(item.node, Grid) and item.node.dims == 0
    return whole and item.text.isdigit() and len(item.text) <= 3


def _kind(token: Token) -> str:
    if token.kind in ("rel", "colon"):
        return "rel"
    if token.kind in ("comma", "pipe") or token.text in _AND:
        return "comma"
    return "text"


def _part_of_name(tokens: tuple[Token, ...], i: int) -> bool:
    """Whether token i is the index or the argument of a name right before it."""
    return i > 0 and not tokens[i].spaced and tokens[i - 1].kind in ("sub", "sup")


def _ends(tokens: tuple[Token, ...], i: int) -> bool:
    """Whether a full stop at i ends a sentence: nothing follows, or a space."""
    return i + 1 == len(tokens) or tokens[i + 1].spaced


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
            i = pair[i + 1] + 1 if i + 1 in pair else i + 2
        elif i in pair and (tokens[i].text == "{" or _is_index(reader, i)):
            i = pair[i] + 1
        else:
            break
    return min(i, len(tokens))


def _is_index(reader: Reader, i: int) -> bool:
    """Whether brackets hold whole numbers right after a name: ``[0]``, ``(0, 1)``, ``[1, :]``."""
    inside = reader.tokens[i + 1 : reader.pair[i]]
    return (
        not reader.tokens[i].spaced
        and 0 < len(inside) <= 5
        and all(t.text.isdigit() or t.kind in ("comma", "colon") for t in inside)
    )


def _slice(text: str, start: int, end: int) -> str:
    return text[max(start, end - 300) : end]


def _group(items: list[Item], line: Line, text: str) -> list[Chain]:
    origin = line.tokens[0].start
    found = [Chain(line.tokens[0].line)]
    fresh = False
    for at, item in enumerate(items):
        if item.kind == "comma":
            fresh = True
            continue
        if fresh:
            found.append(Chain(item.line, _slice(text, origin, item.start)))
            fresh = False
        now = found[-1]
        if item.kind == "rel":
            if _starts_anew(items, at, now):
                label = now.after.pop()
                now = Chain(item.line, _slice(text, origin, items[at - 1].start), [label])
                found.append(now)
            now.related = True
            now.flush()
        elif item.node is not None:
            now.flush()
            now.nodes.append(item.node)
        else:
            (now.after if now.nodes else now.labels).append(item.text)
    return _vectors([c for c in found if c.nodes or c.labels or c.after])


def _starts_anew(items: list[Item], at: int, now: Chain) -> bool:
    """Whether ``.. = 1.46 s_01 = ..`` begins a new chain: a label between a number and a sign."""
    between = at >= 2 and items[at - 1].kind == "text" and items[at - 2].kind == "node"
    return between and len(now.after) > 0 and len(now.labels) > 0 and now.related


def _vectors(found: list[Chain]) -> list[Chain]:
    """With ``= 0.1, 0.2, 0.3`` put together as one vector."""
    out: list[Chain] = []
    for chain in found:
        last = out[-1] if out else None
        if last is not None and last.related and last.nodes and _lone(chain):
            end, more = last.nodes[-1], chain.nodes[0]
            if (
                isinstance(end, Grid)
                and isinstance(more, Grid)
                and _flat(end)
                and "." in _text(more)
            ):
                last.nodes[-1] = vector((*end.rows[0], *more.rows[0]))
                continue
        out.append(chain)
    return out


def _lone(chain: Chain) -> bool:
    return len(chain.nodes) == 1 and not chain.related and not chain.labels


def _flat(grid: Grid) -> bool:
    return grid.dims <= 1 and grid.whole


def _text(grid: Grid) -> str:
    return "".join(cell.text for cell in grid.cells) if grid.dims == 0 else ""
