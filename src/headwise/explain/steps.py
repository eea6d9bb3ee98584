"""The five steps of multi-head attention as a document, with every number."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.document import Block, Document, Formula, Heading, HeatMap, Matrix, Paragraph
from headwise.document.text_format import decimal
from headwise.explain.row_derivation import KEYS_SHOWN, row_derivation
from headwise.explain.trace import KEYS, Trace, check_ranges
from headwise.lang import Text, same

HEADS_SHOWN = 4
"""The most heads that are all shown; of more, only the first, unless ``head`` is given."""

MOST_TOKENS_DRAWN = 512
"""The most tokens for which the weights of a large head are also drawn as a heat map."""

SMALL, SELECTED = 12, 64
"""The most rows or columns of a matrix that is shown whole, and of one of the selected head."""

CORNER = 4  # rows and columns of the corner that is shown of a large matrix


def steps(
    trace: Trace, *, head: int | None = None, row: int | None = None, precision: int = 4
) -> Document:
    """The document that explains one attention.

    By default matrices of more than 12 rows or columns are summarised, only the first of more than
    four heads is shown, and query 0 is written out term by term with its 12 largest weights.

    Args:
        trace: the attention.
        head: show only this head, from 1 to H, with matrices whole up to 64 rows and columns.
        row: write out this query, from 0 to L - 1, with up to 64 keys.
        precision: decimals, from 0 to 15.

    Raises:
        BadValue: if one of them is out of range.
    """
    check_ranges(trace, head, row, precision)
    writer = _Steps(trace, head, row, precision)
    blocks = [*writer.opening(), *writer.project(), *writer.split(), *writer.attend()]
    blocks += [*writer.concatenate(), *writer.result()]
    return Document(Text("Multi-head attention, step by step"), tuple(blocks), precision)


_SOFTMAX = Text("Softmax over each row: the weights of a query are at least 0 and sum to 1.")
_SOFTMAX_SOME_MASKED = Text(
    "Softmax over each row: the weights of a query are at least 0 and sum to 1, "
    "or are all 0 where it sees no key."
)


@dataclass(frozen=True, eq=False)
class _Steps:
    trace: Trace
    head: int | None
    row: int | None
    precision: int

    @property
    def heads(self) -> Sequence[int]:
        if self.head is not None:
            return (self.head,)
        return range(1, self.trace.heads + 1) if self.trace.heads <= HEADS_SHOWN else (1,)

    @property
    def identity_projections(self) -> bool:
        """Whether every projection is the identity without a bias."""
        weights = self.trace.projections
        eye = torch.eye(weights.q.shape[1], dtype=torch.float64)
        return all(
            getattr(weights, f"{name}_bias") is None
            and torch.equal(getattr(weights, name).double(), eye)
            for name in ("q", "k", "v", "out")
        )

    def opening(self) -> list[Block]:
        trace, (length, width) = self.trace, self.trace.get("x").shape
        names = ", ".join(trace.tokens[:SMALL]) + (", …" if length > SMALL else "")
        text = Text(
            "{length} tokens: {names}. Each is a row of X with E = {width} numbers. H = "
            "{heads} heads, each with d_k = {dim} and d_v = {value_dim}. Rows count "
            "from 0, heads from 1. Every result is computed from unrounded numbers.",
            length=length,
            names=names,
            width=width,
            heads=trace.heads,
            dim=trace.get("q", 1).shape[1],
            value_dim=trace.get("v", 1).shape[1],
        )
        return [Paragraph(text), _DEFINITION, *self.matrix("X", trace.get("x"), trace.tokens)]

    def project(self) -> list[Block]:
        letters = [
            f"{letter} = X W^{letter}" + self.bias(letter.lower(), letter) for letter in "QKV"
        ]
        formula = Formula(", ".join(letters), r",\quad ".join(letters))
        title = Text("Project the input to queries, keys and values")
        blocks: list[Block] = [_step(1, title), formula, *self.weights("QKV")]
        q, k, v = (self.trace.get(name) for name in "QKV")
        if q.shape == v.shape and torch.equal(q, k) and torch.equal(q, v):
            return [*blocks, *self.matrix("Q = K = V", q, self.trace.tokens)]
        for name, values in zip("QKV", (q, k, v), strict=True):
            blocks += self.matrix(name, values, self.trace.tokens)
        return blocks

    def bias(self, name: str, letter: str) -> str:
        weights = self.trace.projections
        return f" + b^{letter}" if getattr(weights, f"{name}_bias") is not None else ""

    def weights(self, letters: str) -> list[Block]:
        """W of each projection as in the paper, inputs down and outputs across, and its b."""
        if self.identity_projections:
            return [Paragraph(Text("All projections are the identity here."))]
        blocks: list[Block] = []
        for letter in letters:
            name = "out" if letter == "O" else letter.lower()
            bias = getattr(self.trace.projections, f"{name}_bias")
            weight = getattr(self.trace.projections, name)
            blocks += self.matrix(f"W^{letter}", weight.double().T)
            if bias is not None:
                blocks += self.matrix(f"b^{letter}", bias.double()[None])
        return blocks

    def split(self) -> list[Block]:
        dim, value_dim = (self.trace.get(key, 1).shape[1] for key in "qv")
        text = Text(
            "Head h takes {dim} columns of Q and of K and {value_dim} of V: head 1 the "
            "first ones, head 2 the next ones, and so on.",
            dim=dim,
            value_dim=value_dim,
        )
        blocks: list[Block] = [_step(2, Text("Split into heads")), Paragraph(text)]
        if len(self.heads) < self.trace.heads:
            note = Text(
                "Head {head} of {heads} is shown; --head N shows another.",
                head=self.heads[0],
                heads=self.trace.heads,
            )
            blocks.append(Paragraph(note))
        for head in self.heads:
            for key in "qkv":
                blocks += self.quantity(key, head)
        return blocks

    def attend(self) -> list[Block]:
        standard, bias = self.standard_scale, " + B" if self.trace.changed_by_mask else ""
        plain = "Q_h K_hᵀ / √d_k" if standard else "c Q_h K_hᵀ"
        latex = r"\frac{Q_h K_h^\top}{\sqrt{d_k}}" if standard else r"c\, Q_h K_h^\top"
        formula = Formula(
            f"head_h = softmax({plain}{bias}) V_h",
            rf"\mathrm{{head}}_h = \mathrm{{softmax}}\left({latex}{bias}\right) V_h",
        )
        blocks: list[Block] = [_step(3, Text("Attend, each head by itself")), formula]
        for head in self.heads:
            blocks += self.one_head(head)
        return blocks

    @property
    def standard_scale(self) -> bool:
        return bool(self.trace.scale == 1.0 / self.trace.get("q", 1).shape[1] ** 0.5)

    def one_head(self, head: int) -> list[Block]:
        masked_rows = self.masked_rows(head)
        blocks: list[Block] = [Heading(Text("Head {head}", head=head), 3)]
        softmax = _SOFTMAX_SOME_MASKED if masked_rows else _SOFTMAX
        for key, explanation, plain, latex in self.equations(softmax):
            formula = Formula(*(text.replace("%d", str(head)) for text in (plain, latex)))
            blocks += [Paragraph(explanation), formula, *self.quantity(key, head)]
        blocks += [*masked_rows, *self.heat_map(head)]
        row = self.row or 0
        token = self.trace.tokens[row]
        title = Text(
            "Head {head}, row {row} ({tokens}), written out", head=head, row=row, tokens=token
        )
        most = KEYS_SHOWN if self.row is None else SELECTED
        blocks.append(Heading(title, 4))
        return blocks + row_derivation(self.trace, head, row, self.precision, most)

    def equations(self, softmax: Text) -> list[tuple[str, Text, str, str]]:
        """The steps of one head: key, explanation, formula, and its LaTeX; ``%d`` is the head."""
        biased = self.trace.changed_by_mask
        scores, tex = ("Ŝ", r"\hat{S}_{%d}") if biased else ("S̃", r"\tilde{S}_{%d}")
        score = Text("Scores: the dot product of each query with each key.")
        scale = Text("Scale: multiply by c = {scale}.", scale=f"{self.trace.scale:g}")
        scaled = ("S̃_%d = c S_%d", r"\tilde{S}_{%d} = c\, S_{%d}")
        if self.standard_scale:
            scale = Text("Scale: divide by √d_k.")
            scaled = ("S̃_%d = S_%d / √d_k", r"\tilde{S}_{%d} = S_{%d} / \sqrt{d_k}")
        mask = Text("Bias and mask: B is added, and a key that may not be seen gets −∞.")
        masked = ("Ŝ_%d = S̃_%d + B_%d", r"\hat{S}_{%d} = \tilde{S}_{%d} + B_{%d}")
        output = Text("Weighted sum: each query gets the rows of V, mixed by its weights.")
        weights = (f"A_%d = softmax({scores}_%d)", rf"A_{{%d}} = \mathrm{{softmax}}({tex})")
        return [
            ("score", score, "S_%d = Q_%d K_%dᵀ", r"S_{%d} = Q_{%d} K_{%d}^\top"),
            ("scaled", scale, *scaled),
            *([("masked", mask, *masked)] if biased else []),
            ("softmax", softmax, *weights),
            ("head", output, "head_%d = A_%d V_%d", r"\mathrm{head}_{%d} = A_{%d} V_{%d}"),
        ]

    def masked_rows(self, head: int) -> list[Block]:
        """A sentence about the queries that see no key, if there are any."""
        masked = ~self.trace.get("masked", head).isfinite().any(-1)
        rows = masked.nonzero()[:, 0].tolist()
        if not rows:
            return []
        listed = ", ".join(map(str, rows[:SMALL])) + (", …" if len(rows) > SMALL else "")
        text = Text("Rows that see no key ({listed}) have weights 0 and output 0.", listed=listed)
        return [Paragraph(text)]

    def heat_map(self, head: int) -> list[Block]:
        """The weights as a heat map, for a head that is too large to be shown whole."""
        tokens = self.trace.tokens
        if not SMALL < len(tokens) <= MOST_TOKENS_DRAWN:
            return []
        allowed = self.trace.get("masked", head).isfinite()
        values = self.trace.get("softmax", head).masked_fill(~allowed, torch.nan).tolist()
        title = Text("Weights of head {head}", head=head)
        return [HeatMap(title, values, tokens, tokens)]

    def concatenate(self) -> list[Block]:
        latex = r"\mathrm{Concat} = [\mathrm{head}_1, \ldots, \mathrm{head}_H]"
        formula = Formula("Concat = [head_1, …, head_H]", latex)
        values, tokens = self.trace.get("concat"), self.trace.tokens
        matrix = self.matrix("Concat", values, tokens, r"\mathrm{Concat}")
        return [_step(4, Text("Put the heads side by side")), formula, *matrix]

    def result(self) -> list[Block]:
        bias, output = self.bias("out", "O"), self.trace.get("output")
        formula = Formula(
            f"Output = Concat W^O{bias}", rf"\mathrm{{Output}} = \mathrm{{Concat}}\, W^O{bias}"
        )
        weights = [] if self.identity_projections else self.weights("O")
        matrix = self.matrix("Output", output, self.trace.tokens, r"\mathrm{Output}")
        return [_step(5, Text("Project the result")), formula, *weights, *matrix]

    def quantity(self, key: str, head: int) -> list[Block]:
        pairs = key in ("score", "scaled", "masked", "softmax")
        most = SMALL if self.head is None else SELECTED
        labels = (self.trace.tokens, self.trace.tokens if pairs else ())
        symbol = Formula(f"{_LETTERS[key]}_{head}", KEYS[key][1] % head)
        return matrix_blocks(self.trace.get(key, head), symbol, self.precision, labels, most)

    def matrix(
        self, name: str, values: Tensor, rows: Sequence[str] = (), latex: str = ""
    ) -> list[Block]:
        return matrix_blocks(values, Formula(name, latex or name), self.precision, (rows, ()))


_LETTERS = {"q": "Q", "k": "K", "v": "V", "score": "S", "scaled": "S̃", "masked": "Ŝ"}
_LETTERS |= {"softmax": "A", "head": "head"}

_DEFINITION = Formula(
    "MultiHead(X) = Concat(head_1, …, head_H) W^O",
    r"\mathrm{MultiHead}(X) = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_H)\, W^O",
)


def _step(number: int, title: Text) -> Heading:
    return Heading(Text("Step {number}: {title}", number=number, title=title))


def matrix_blocks(
    values: Tensor,
    symbol: Formula,
    precision: int,
    labels: tuple[Sequence[str], Sequence[str]] = ((), ()),
    most: int = SMALL,
) -> list[Block]:
    """One matrix as blocks: whole up to ``most`` rows or columns, else its range and a corner.

    ``labels`` are those of the rows and of the columns; ``precision`` is that of the range.
    """
    rows, columns = labels
    if max(values.shape) <= most:
        return [Matrix(symbol, values.tolist(), rows, columns)]
    height, width = (min(CORNER, size) for size in values.shape)
    corner = Formula(
        f"{symbol.plain}[0..{height - 1}, 0..{width - 1}]",
        rf"{symbol.latex}[0 \ldots {height - 1},\, 0 \ldots {width - 1}]",
    )
    part = values[:height, :width].tolist()
    summary = Paragraph(_summary(values, symbol.plain, precision))
    return [summary, Matrix(corner, part, rows[:height], columns[:width])]


def _summary(values: Tensor, name: str, precision: int) -> Text:
    size = " × ".join(map(str, values.shape))
    finite = values[values.isfinite()]
    blocked = values.numel() - finite.numel()
    if not finite.numel():
        return Text("{name}: {size}, every entry −∞.", name=name, size=size)
    numbers = (finite.min(), finite.max(), finite.mean())
    low, high, mean = (decimal(number.item(), precision) for number in numbers)
    return Text(
        "{name}: {size}, from {low} to {high}, mean {mean}{blocked}. Its top left corner:",
        name=name,
        size=size,
        low=low,
        high=high,
        mean=mean,
        blocked=Text(", {count} entries −∞", count=blocked) if blocked else same(""),
    )
