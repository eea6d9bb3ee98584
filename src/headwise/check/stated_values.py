"""Sizes, choices and matrices that an article states: d_model, heads, mask, weights, Q, K, V."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from headwise.check.expression_tree import Grid
from headwise.check.statements import Statement
from headwise.check.targets import WEIGHTS, Place, upper
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

        A count that fits the width comes first; without a count it follows from d_model and d_k.
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
    counts = [number for pattern in _HEADS for number in _all(pattern, text)]
    counts.sort(key=lambda number: _foreignness(number, text))
    if counts and counts[0].value < 1:
        raise BadFile(
            "heads: line {line} states {value}; expected at least 1; give --heads N",
            line=counts[0].line,
            value=counts[0].value,
        )
    return StatedSizes(
        model=tuple(number for number in _all(_MODEL, text) if _foreignness(number, text) < 2),
        key=tuple(number for number in _all(_KEY, text) if _foreignness(number, text) < 2),
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
    ends = r"[.!?;:。！？；\n](?![0-9])|, (?:but|while|and)\b"
    before = re.split(ends, text[: stated.start][-200:])
    after = re.split(r"[.!?;,。！？；\n](?![0-9])", text[stated.start :][:100])
    return before[-1] + after[0]


def _foreignness(stated: StatedSize, text: str) -> int:
    """0 for a size of this example, 2 for one of another model, else 1."""
    clause = _clause(stated, text)
    if _OURS.search(clause):
        return 0
    return 2 if _FOREIGN.search(clause) else 1


NAMES = ("q", "k", "v", "out")
_DIRECT = {"q": ("q", "Q"), "k": ("k", "K"), "v": ("v", "V")}


@dataclass
class StatedMatrices:
    """Matrices stated as weights, biases, or Q, K and V: by name and head, None for all heads."""

    weights: dict[Place, Grid] = field(default_factory=dict)
    biases: dict[Place, Grid] = field(default_factory=dict)
    values: dict[Place, Grid] = field(default_factory=dict)

    @classmethod
    def of(cls, statements: list[Statement]) -> "StatedMatrices":
        """Collect them from statements; the first statement of a matrix counts."""
        stated = cls()
        for statement in statements:
            grids = [grid for grid in statement.equation.grids if grid.whole and grid.dims > 0]
            if grids:
                stated._take(statement, grids)
        return stated

    def _take(self, statement: Statement, grids: list[Grid]) -> None:
        own = statement.own
        ref = own.head or own.either
        head = None if ref is None else ref.number
        if own.weight and own.bias:
            for name in own.weight:
                self.biases.setdefault((name, head), grids[-1])
            return
        around = next((hint.head for hint in statement.around if hint.head), None)
        head = around.number if head is None and around else head
        if own.weight and grids[-1].dims == 2:
            for name in own.weight:
                self.weights.setdefault((name, None if name == "out" else head), grids[-1])
        elif grids[0].dims == 2 and own.keys and not own.transposed:
            for name, keys in _DIRECT.items():
                if set(own.keys) <= set(keys):
                    self.values.setdefault((name, head), grids[0])

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
        return StatedMatrices(*({place: _raised(g) for place, g in t.items()} for t in tables))

    def direct(self, heads: int) -> tuple[Tensor, Projections, frozenset[int]] | None:
        """An input and projections whose Q, K and V are those stated; None if one is missing."""
        stated = [self._stated(name, heads) for name in _DIRECT]
        tables = [torch.cat([_tensor(grid) for grid in grids], 1) for grids in stated if grids]
        if len(tables) < 3 or len({len(table) for table in tables}) > 1:
            return None
        widths = [table.shape[1] for table in tables]
        if widths[0] != widths[1]:
            return None
        q, k, v = torch.split(_identity(sum(widths)), widths)
        stated_out = self.weights.get(("out", None))
        out = _identity(widths[2]) if stated_out is None else _tensor(stated_out).T
        cells = offsets(grid for grids in stated for grid in grids)
        return torch.cat(tables, 1), Projections(q, k, v, out), cells

    def _stated(self, name: str, heads: int) -> list[Grid]:
        """Q, K or V of all heads, or of each head; [] where one is missing."""
        if (name, None) in self.values:
            return [self.values[name, None]]
        own = [grid for (key, _), grid in sorted(self.values.items(), key=str) if key == name]
        return own if len(own) == heads and len({len(grid.rows) for grid in own}) == 1 else []


def _raised(grid: Grid) -> Grid:
    rows = zip(grid.rows, upper(grid), strict=True)
    cells = tuple(
        tuple(replace(c, value=v) for c, v in zip(row, values, strict=True) if c is not None)
        for row, values in rows
    )
    return replace(grid, rows=cells)


def offsets(grids: Iterable[Grid]) -> frozenset[int]:
    """The offsets of all printed numbers of some grids."""
    return frozenset(cell.start for grid in grids for cell in grid.cells)


def _tensor(grid: Grid) -> Tensor:
    return torch.tensor(grid.values, dtype=torch.float64)


def projections(
    stated: StatedMatrices, embed_dim: int
) -> Iterable[tuple[Projections, tuple[Text, ...]]]:
    """The projections of an article, Q = X W and Q = X Wᵀ, where they fit; `BadFile` if neither."""
    errors = []
    for turned in (False, True):
        try:
            weights = _projections(stated, embed_dim, turned=turned)
        except BadFile as error:
            errors.append(error)
            continue
        form = Text("Q = X Wᵀ") if turned else Text("Q = X W")
        names = ", ".join(sorted({WEIGHTS[f"W_{name}"] for name, _ in stated.weights}))
        yield weights, (Text("{names} from the text, {form}", names=names, form=form),)
        if not any(grid.shape[0] == grid.shape[1] for grid in stated.weights.values()):
            return
    if len(errors) == 2:
        raise errors[0]


def _projections(stated: StatedMatrices, embed_dim: int, *, turned: bool) -> Projections:
    grids = {name: _of(stated.weights, name) for name in NAMES}
    widths = (sum(grid.shape[not turned] for grid in grids[n]) for n in NAMES[:3] if grids[n])
    inner = next(widths, embed_dim)
    result = []
    for name in NAMES[:3]:
        if not grids[name] and inner != embed_dim:
            raise _unfit(name, embed_dim, (0, 0))
        result.append(_weight(name, grids[name], embed_dim, turned))
    q, k, v = result
    out = _weight("out", grids["out"], len(v), turned)
    biases = {
        f"{name}_bias": torch.cat([_tensor(grid).flatten() for grid in _of(stated.biases, name)])
        for name in NAMES
        if any(key == name for key, _ in stated.biases)
    }
    return Projections(q, k, v, out, **biases)


def _of(table: dict[Place, Grid], name: str) -> list[Grid]:
    """The matrix of all heads, or those of each head in order."""
    if (name, None) in table:
        return [table[name, None]]
    heads = sorted(head for key, head in table if key == name and head is not None)
    return [table[name, head] for head in heads]


def _weight(name: str, grids: list[Grid], size: int, turned: bool) -> Tensor:
    """One projection laid out as in `torch.nn.Linear`: (outputs, inputs); identity by default."""
    weights = [_tensor(grid) if turned else _tensor(grid).T for grid in grids]
    for weight in weights:
        if weight.shape[1] != size:
            raise _unfit(name, size, tuple(weight.shape if turned else weight.T.shape))
    return torch.cat(weights) if weights else _identity(size)


def _identity(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def _unfit(name: str, rows: int, got: tuple[int, ...]) -> BadFile:
    return BadFile(
        "{symbol}: expected a matrix with {rows} rows for this input, got {got}; "
        "correct the article or give --weights FILE",
        symbol=WEIGHTS[f"W_{name}"],
        rows=rows,
        got=got,
    )
