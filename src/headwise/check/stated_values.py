"""Sizes, choices and matrices that an article states: d_model, heads, mask, weights, Q, K, V."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from headwise.check.expression_tree import Grid
from headwise.check.statements import Statement
from headwise.check.targets import upper
from headwise.errors import BadFile
from headwise.explain.trace import Projections
from headwise.lang import Text

_COUNTS = {
    "one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "eight": 8,
    "一": 1, "单": 1, "两": 2, "二": 2, "双": 2, "三": 3, "四": 4, "八": 8,
}  # fmt: skip
_IS = r"[\s}$`*)]{0,6}(?:=|:|为|是|is|of)[\s$`*{]{0,4}"
_MODEL = re.compile(
    rf"(?:d_?\{{?(?:\\(?:text|mathrm)\{{)?(?:model|emb\w*)|embed_dim|embedding dim\w*|"
    rf"d_?m|模型维度|嵌入维度){_IS}([0-9]{{1,4}})(?!\.?[0-9])"
)
_KEY = re.compile(
    rf"(?:(?<![A-Za-z])d_?\{{?k|head_dim|head dim\w*|每个?头的?维度){_IS}([0-9]{{1,4}})(?!\.?[0-9])"
)
_HEADS = (
    re.compile(
        r"(?:(?<![A-Za-z])(?:[hH]|n_?\{?heads?|num_?heads?|nheads?|n_h|heads|number of heads)|"
        rf"头数|头的数量|头的个数){_IS}([0-9]{{1,3}}|two|three|four|eight)(?!\.?[0-9])"
    ),
    re.compile(
        r"(?<![A-Za-z0-9.])([0-9]{1,3}|one|single|two|three|four|eight)[\s-]+(?:attention\s+)?heads?\b(?!\s[0-9])",
        re.I,
    ),
    re.compile(r"(?<!第)(?<![0-9.])([0-9]{1,3}\s?个|[一两二三四八]\s?个|[单双])\s?(?:注意力)?头"),
)
_IDENTITY = re.compile(
    r"\bidentity\b|单位(?:矩)?阵|恒等|W[^=\n]{0,60}=\s?\$?(?:\\math\w{1,3}\{)?I(?![A-Za-z])|eye\(",
    re.I,
)
_MASKED = re.compile(r"causal|\bmask|因果|掩码|自回归|下三角|look-ahead|autoregressive", re.I)
_UNSCALED = re.compile(
    r"(?:without|no|not|skip\w{0,4}|ignor\w{0,3}|omit\w{0,4}|leave out)\s(?:the\s|any\s)?"
    r"(?:\w{1,12}\s)?scal|(?:不|未|省略|忽略|没有)(?:做|作|进行)?缩放",
    re.I,
)


@dataclass(frozen=True)
class StatedSize:
    """A stated size and its place."""

    value: int
    line: int
    start: int
    text: str


@dataclass(frozen=True)
class StatedSizes:
    """Stated sizes, the likeliest first, and stated choices."""

    model: tuple[StatedSize, ...]
    key: tuple[StatedSize, ...]
    count: tuple[StatedSize, ...]
    identity: bool
    masked: bool
    unscaled: bool

    def heads(self, width: int | None) -> int | None:
        """The stated number of heads for an input of this width; None for any width.

        A count that fits the width comes before one that does not; without one it follows from
        d_model and d_k.
        """
        if self.count:
            fitting = (s.value for s in self.count if width is not None and width % s.value == 0)
            return next(fitting, self.count[0].value)
        if self.model and self.key and self.key[0].value:
            whole, rest = divmod(self.model[0].value, self.key[0].value)
            return whole if not rest else None
        return None


def read_sizes(text: str) -> StatedSizes:
    """Find the sizes and choices that an article states.

    Raises:
        BadFile: if it states two numbers of heads that differ, or 0 heads.

    Example:
        >>> read_sizes("GPT-3 has 96 heads; here we use 2 heads, W^Q = I").heads(4)
        2
    """
    result = [number for pattern in _HEADS for number in _all(pattern, text)]
    counts = sorted(result, key=lambda number: _likely(number, text))
    count = counts[0] if counts else None
    if count is not None and count.value < 1:
        raise BadFile(
            "heads: line {line} states {value}; expected at least 1; give --heads N",
            line=count.line,
            value=count.value,
        )
    return StatedSizes(
        model=tuple(number for number in _all(_MODEL, text) if not _foreign(number, text)),
        key=tuple(number for number in _all(_KEY, text) if not _foreign(number, text)),
        count=tuple(number for number in counts if number.value >= 1),
        identity=bool(_IDENTITY.search(text)),
        masked=bool(_MASKED.search(text)),
        unscaled=bool(_UNSCALED.search(text)),
    )


_MOST_STATED = 50

_FOREIGN = re.compile(
    r"\b(?:GPT|BERT|RoBERTa|T5|LLaMA|Llama|ViT|CLIP|Mistral|Qwen|Gemma|DeepSeek|PaLM|Falcon|"
    r"BLOOM|OPT|Claude|Whisper)(?![a-z])|\bVaswani|Transformer[- ](?:base|big)|"
    r"\b(?:original|real|large|production|typical|actual)\b|\bthe paper\b|in practice|"
    r"原(?:始)?论文|论文中|实际(?:中|模型|应用)|大模型|真实"
)
_OURS = re.compile(
    r"\b(?:we|our|us|here|toy|this example|let)\b|我们|本例|本文|这里|此处|示例|例子|例如", re.I
)


def _all(pattern: re.Pattern[str], text: str) -> list[StatedSize]:
    result = []
    for match in islice(pattern.finditer(text), _MOST_STATED):
        word = match[1].replace("个", "").strip().lower()
        value = int(word) if word.isascii() and word.isdigit() else _COUNTS[word]
        line = text.count("\n", 0, match.start(1)) + 1
        result.append(StatedSize(value, line, match.start(1), match[1].strip()))
    return result


def _clause(stated: StatedSize, text: str) -> str:
    """The clause around a stated size."""
    before = re.split(
        r"[.!?;:。！？；\n](?![0-9])|, (?:but|while|and)\b", text[: stated.start][-200:]
    )
    after = re.split(r"[.!?;,。！？；\n](?![0-9])", text[stated.start :][:100])
    return before[-1] + after[0]


def _foreign(stated: StatedSize, text: str) -> bool:
    """Whether the clause names another model."""
    clause = _clause(stated, text)
    return bool(_FOREIGN.search(clause)) and not _OURS.search(clause)


def _likely(stated: StatedSize, text: str) -> int:
    """0 for a size of this example, 2 for one of another model, else 1."""
    if _foreign(stated, text):
        return 2
    return 0 if _OURS.search(_clause(stated, text)) else 1


NAMES = ("q", "k", "v", "out")
_SYMBOL = {"q": "W^Q", "k": "W^K", "v": "W^V", "out": "W^O"}
_DIRECT = {"q": ("q", "Q"), "k": ("k", "K"), "v": ("v", "V")}


@dataclass
class StatedMatrices:
    """Matrices stated as weights, biases or Q, K and V.

    Attributes:
        weights: by name and head as written; None for all heads.
        biases: the same for biases.
        values: Q, K and V, by name and head.
    """

    weights: dict[tuple[str, int | None], Grid] = field(default_factory=dict)
    biases: dict[tuple[str, int | None], Grid] = field(default_factory=dict)
    values: dict[tuple[str, int | None], Grid] = field(default_factory=dict)

    @classmethod
    def of(cls, statements: list[Statement]) -> "StatedMatrices":
        """Collect them from statements; the first statement of a matrix counts."""
        given = cls()
        for statement in statements:
            grids = [grid for grid in statement.equation.grids if grid.whole and grid.dims > 0]
            if grids:
                given._take(statement, grids)
        return given

    def _take(self, statement: Statement, grids: list[Grid]) -> None:
        own = statement.own
        around = next((hint.head for hint in statement.around if hint.head), None)
        ref = own.head or own.either
        head = None if ref is None else ref.number
        if own.weight and own.bias:
            for name in own.weight:
                self.biases.setdefault((name, head), grids[-1])
        elif own.weight and grids[-1].dims == 2:
            for name in own.weight:
                place = (name, around.number if head is None and around else head)
                self.weights.setdefault((name, None) if name == "out" else place, grids[-1])
        elif grids[0].dims == 2 and own.keys and not own.transposed:
            for name, keys in _DIRECT.items():
                if set(own.keys) <= set(keys):
                    place = (name, around.number if head is None and around else head)
                    self.values.setdefault(place, grids[0])

    @property
    def heads(self) -> int:
        """How many heads have weights of their own; 0 where none has."""
        return len({head for name, head in self.weights if head is not None and name != "out"})

    @property
    def grids(self) -> list[Grid]:
        """Every matrix of weights and biases."""
        return [*self.weights.values(), *self.biases.values()]

    def raised(self) -> "StatedMatrices":
        """The same, each number half a step up where its matrix is printed rounded."""
        tables = (self.weights, self.biases, self.values)
        return StatedMatrices(
            *({place: _raised(grid) for place, grid in t.items()} for t in tables)
        )

    @property
    def used(self) -> frozenset[int]:
        """The offsets of all numbers of weights and biases."""
        return _offsets(self.grids)

    def direct(self, heads: int) -> tuple[Tensor, Projections, frozenset[int]] | None:
        """An input and projections that give exactly the Q, K and V stated; None if one lacks."""
        stated = [self._stated(name, heads) for name in _DIRECT]
        tables = [table for table, _ in stated if table is not None]
        if len(tables) < 3 or len({len(table) for table in tables}) > 1:
            return None
        x = torch.cat(tables, 1)
        ends = torch.split(torch.eye(x.shape[1], dtype=torch.float64), [t.shape[1] for t in tables])
        if tables[0].shape[1] != tables[1].shape[1]:
            return None
        inner = tables[2].shape[1]
        out = self.weights.get(("out", None))
        square = torch.eye(inner, dtype=torch.float64) if out is None else _tensor(out).T
        cells = frozenset().union(*(cells for _, cells in stated))
        return x, Projections(ends[0], ends[1], ends[2], square), cells

    def _stated(self, name: str, heads: int) -> tuple[Tensor | None, frozenset[int]]:
        if (name, None) in self.values:
            grid = self.values[name, None]
            return _tensor(grid), _offsets([grid])
        own = [grid for (key, _), grid in sorted(self.values.items(), key=str) if key == name]
        if len(own) != heads or len({len(grid.rows) for grid in own}) != 1:
            return None, frozenset()
        return torch.cat([_tensor(grid) for grid in own], 1), _offsets(own)


def _raised(grid: Grid) -> Grid:
    rows = zip(grid.rows, upper(grid), strict=True)
    cells = tuple(
        tuple(replace(c, value=v) for c, v in zip(row, values, strict=True) if c is not None)
        for row, values in rows
    )
    return replace(grid, rows=cells)


def _offsets(grids: Iterable[Grid]) -> frozenset[int]:
    return frozenset(cell.start for grid in grids for cell in grid.cells)


def _tensor(grid: Grid) -> Tensor:
    return torch.tensor(grid.values, dtype=torch.float64)


def projections(
    given: StatedMatrices, embed_dim: int, heads: int
) -> Iterable[tuple[Projections, tuple[Text, ...]]]:
    """The projections of an article: Q = X W as such articles write, and Q = X Wᵀ where it fits.

    Raises:
        BadFile: if a matrix fits the input in neither way.
    """
    last = None
    for turned in (False, True):
        try:
            made = _made(given, embed_dim, heads, turned=turned)
        except BadFile as error:
            last = last or error
            continue
        last = None if turned else last
        form = Text("Q = X Wᵀ") if turned else Text("Q = X W")
        names = ", ".join(sorted({_SYMBOL[name] for name, _ in given.weights}))
        yield made, (Text("{names} from the text, {form}", names=names, form=form),)
        last = None
        if not any(_square(grid) for grid in given.weights.values()):
            return
    if last is not None and not _fits_one(given, embed_dim, heads):
        raise last


def _fits_one(given: StatedMatrices, embed_dim: int, heads: int) -> bool:
    for turned in (False, True):
        try:
            _made(given, embed_dim, heads, turned=turned)
        except BadFile:
            continue
        return True
    return False


def _square(grid: Grid) -> bool:
    return grid.shape[0] == grid.shape[1]


def _made(given: StatedMatrices, embed_dim: int, heads: int, *, turned: bool) -> Projections:
    inner = next(
        (_width(given, name, heads, turned) for name in NAMES[:3] if _has(given, name)), embed_dim
    )
    result = {}
    for name in NAMES[:3]:
        result[name] = _one(given, name, embed_dim, turned) if _has(given, name) else None
        if result[name] is None:
            if inner != embed_dim:
                raise _unfit(name, (embed_dim, inner), (0, 0))
            result[name] = torch.eye(embed_dim, dtype=torch.float64)
    width = result["v"].shape[0] if result["v"] is not None else inner
    out = torch.eye(width, dtype=torch.float64)
    if ("out", None) in given.weights:
        out = _one(given, "out", width, turned)
    biases = {f"{n}_bias": _bias(given, n) for n in NAMES if any(k == n for k, _ in given.biases)}
    q, k, v = (result[name] for name in NAMES[:3])
    if q is None or k is None or v is None:
        raise _unfit("q", (embed_dim, inner), (0, 0))
    return Projections(q, k, v, out, **biases)


def _has(given: StatedMatrices, name: str) -> bool:
    return any(key == name for key, _ in given.weights)


def _of(table: dict[tuple[str, int | None], Grid], name: str) -> list[Grid]:
    """The matrix of all heads, or those of each head in order."""
    if (name, None) in table:
        return [table[name, None]]
    numbers = sorted(head for key, head in table if key == name and head is not None)
    return [table[name, head] for head in numbers]


def _width(given: StatedMatrices, name: str, heads: int, turned: bool) -> int:
    del heads
    return sum(grid.shape[0 if turned else 1] for grid in _of(given.weights, name))


def _one(given: StatedMatrices, name: str, size: int, turned: bool) -> Tensor:
    """One projection laid out as in `torch.nn.Linear`: (outputs, inputs)."""
    tables = []
    for grid in _of(given.weights, name):
        weight = _tensor(grid)
        if weight.shape[1 if turned else 0] != size:
            raise _unfit(name, (size,), tuple(weight.shape))
        tables.append(weight if turned else weight.T)
    return torch.cat(tables)


def _bias(given: StatedMatrices, name: str) -> Tensor:
    return torch.cat([_tensor(grid).flatten() for grid in _of(given.biases, name)])


def _unfit(name: str, expected: tuple[int, ...], got: tuple[int, ...]) -> BadFile:
    rows = expected[0]
    return BadFile(
        "{symbol}: expected a matrix with {rows} rows for this input, got {got}; "
        "correct the article or give --weights FILE",
        symbol=_SYMBOL[name],
        rows=rows,
        got=got,
    )
