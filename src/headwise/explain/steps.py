"""The five steps of a multi-head attention as a document, with every number."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.document import Block, Document, Formula, Heading, HeatMap, Paragraph
from headwise.errors import BadValue
from headwise.explain.summary import OPENED, SMALL, shown
from headwise.explain.trace import Trace
from headwise.explain.working import KEYS_SHOWN, written_out
from headwise.lang import Text

HEADS_SHOWN = 4
"""Up to so many heads are all shown; of more, only the first, unless one is asked for."""

DRAWN = 512
"""Tokens up to which the weights of a large head are also drawn as a heat map."""

MOST_PRECISION = 15


def steps(
    trace: Trace, *, head: int | None = None, row: int | None = None, precision: int = 4
) -> Document:
    """The document that explains one attention.

    Matrices of more than 12 rows or columns are summarised, and of more than four heads the first
    is shown. ``head`` opens one head: only it is shown, its matrices whole up to 64 rows and
    columns. ``row`` says which query is written out term by term, with up to 64 keys; by default
    it is query 0 with the 12 strongest keys.

    Args:
        trace: what `trace` computed.
        head: from 1 to H.
        row: from 0 to L - 1.
        precision: decimals, from 0 to 15.

    Raises:
        BadValue: if one of them is out of range.
    """
    check(trace, head, row, precision)
    writer = _Steps(trace, head, row, precision)
    blocks = [
        *writer.opening(),
        *writer.project(),
        *writer.split(),
        *writer.attend(),
        *writer.concatenate(),
        *writer.result(),
    ]
    return Document(_TITLE, tuple(blocks), precision)


def check(trace: Trace, head: int | None, row: int | None, precision: int) -> None:
    """Refuse a head, a row or a precision that does not exist.

    Raises:
        BadValue: naming the range.
    """
    ranges = (
        ("head", head, 1, trace.heads),
        ("row", row, 0, len(trace.tokens) - 1),
        ("precision", precision, 0, MOST_PRECISION),
    )
    for name, value, low, high in ranges:
        if value is not None and not low <= value <= high:
            raise BadValue(
                "{name}: expected a whole number from {low} to {high}, got {value}",
                name=name,
                low=low,
                high=high,
                value=value,
            )


_TITLE = Text("Multi-head attention, step by step")

_WHY = {
    "score": Text("Scores: the dot product of each query with each key."),
    "masked": Text("Bias and mask: B is added, and a key that may not be seen gets −∞."),
    "softmax": Text("Softmax over each row: the weights of a query are at least 0 and sum to 1."),
    "head": Text("Weighted sum: each query gets the rows of V, mixed by its weights."),
}


_SOME_BLIND = Text(
    "Softmax over each row: the weights of a query are at least 0 and sum to 1, "
    "or are all 0 where it sees no key."
)


@dataclass(frozen=True, eq=False)
class _Steps:
    trace: Trace
    head: int | None
    row: int | None
    precision: int
    heads: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        count = self.trace.heads
        some = range(1, count + 1) if count <= HEADS_SHOWN else (1,)
        object.__setattr__(self, "heads", tuple(some) if self.head is None else (self.head,))

    @property
    def plain_weights(self) -> bool:
        """Whether the projections change nothing."""
        weights = self.trace.projections
        return all(
            getattr(weights, f"{name}_bias") is None and _is_identity(getattr(weights, name))
            for name in ("q", "k", "v", "out")
        )

    def opening(self) -> list[Block]:
        trace, (length, width) = self.trace, self.trace.get("x").shape
        dim, value_dim = trace.get("q", 1).shape[1], trace.get("v", 1).shape[1]
        names = ", ".join(trace.tokens[:SMALL]) + (", …" if length > SMALL else "")
        text = Text(
            "{length} tokens: {names}. Each is a row of X with E = {width} numbers. H = "
            "{heads} heads, each with d_k = {dim} and d_v = {value_dim}. Rows count "
            "from 0, heads from 1. Every result is computed from unrounded numbers.",
            length=length,
            names=names,
            width=width,
            heads=trace.heads,
            dim=dim,
            value_dim=value_dim,
        )
        return [Paragraph(text), *_WHOLE, *self.matrix("X", "X", trace.get("x"), trace.tokens)]

    def project(self) -> list[Block]:
        blocks: list[Block] = [
            _step(1, Text("Project the input to queries, keys and values")),
            self.projecting(),
        ]
        blocks += self.weights(("q", "k", "v"))
        q, k, v = (self.trace.get(name) for name in "QKV")
        if q.shape == v.shape and torch.equal(q, k) and torch.equal(q, v):
            return [*blocks, *self.matrix("Q = K = V", "Q = K = V", q, self.trace.tokens)]
        for name, values in zip("QKV", (q, k, v), strict=True):
            blocks += self.matrix(name, name, values, self.trace.tokens)
        return blocks

    def weights(self, names: Sequence[str]) -> list[Block]:
        """W of each projection as the paper has it, inputs down and outputs across, and its b."""
        if self.plain_weights:
            text = Text("All projections are the identity here.")
            return [Paragraph(text)]
        blocks: list[Block] = []
        for name in names:
            letter = "O" if name == "out" else name.upper()
            weight = getattr(self.trace.projections, name).double()
            bias = getattr(self.trace.projections, f"{name}_bias")
            blocks += self.matrix(f"W^{letter}", f"W^{letter}", weight.T)
            if bias is not None:
                blocks += self.matrix(f"b^{letter}", f"b^{letter}", bias.double()[None])
        return blocks

    def projecting(self) -> Formula:
        weights = self.trace.projections
        parts = []
        for letter in "QKV":
            bias = getattr(weights, f"{letter.lower()}_bias") is not None
            parts.append(f"{letter} = X W^{letter}" + (f" + b^{letter}" if bias else ""))
        return Formula(", ".join(parts), r",\quad ".join(parts))

    def split(self) -> list[Block]:
        dim, value_dim = (self.trace.get(key, 1).shape[1] for key in "qv")
        text = Text(
            "Head h takes {dim} columns of Q and of K and {value_dim} of V: head 1 the "
            "first ones, head 2 the next ones, and so on.",
            dim=dim,
            value_dim=value_dim,
        )
        blocks: list[Block] = [
            _step(2, Text("Split into heads")),
            Paragraph(text),
            *self.which_heads(),
        ]
        for head in self.heads:
            for key in "qkv":
                blocks += self.quantity(key, head)
        return blocks

    def which_heads(self) -> list[Block]:
        if len(self.heads) == self.trace.heads:
            return []
        text = Text(
            "Head {heads_0} of {heads} is shown; --head opens another.",
            heads_0=self.heads[0],
            heads=self.trace.heads,
        )
        return [Paragraph(text)]

    def attend(self) -> list[Block]:
        blocks: list[Block] = [_step(3, Text("Attend, each head by itself")), self.attention()]
        for head in self.heads:
            blocks += self.one_head(head)
        return blocks

    def attention(self) -> Formula:
        scaled = r"\frac{Q_h K_h^\top}{\sqrt{d_k}}" if self.usual else r"c\, Q_h K_h^\top"
        plain = "Q_h K_hᵀ / √d_k" if self.usual else "c Q_h K_hᵀ"
        more = (" + B", " + B") if self.trace.changed else ("", "")
        return Formula(
            f"head_h = softmax({plain}{more[0]}) V_h",
            rf"\mathrm{{head}}_h = \mathrm{{softmax}}\left({scaled}{more[1]}\right) V_h",
        )

    @property
    def usual(self) -> bool:
        return bool(self.trace.scale == 1.0 / self.trace.get("q", 1).shape[1] ** 0.5)

    def one_head(self, head: int) -> list[Block]:
        blocks: list[Block] = [Heading(Text("Head {head}", head=head), 3)]
        blocks += [
            Paragraph(_WHY["score"]),
            _indexed("S_%d = Q_%d K_%dᵀ", r"S_{%d} = Q_{%d} K_{%d}^\top", head),
        ]
        blocks += [*self.quantity("score", head), *self.scaling(head)]
        blind = self.blind_rows(head)
        for key, plain, latex in self.later():
            why = _SOME_BLIND if key == "softmax" and blind else _WHY[key]
            blocks += [Paragraph(why), _indexed(plain, latex, head), *self.quantity(key, head)]
        blocks += [*blind, *self.drawn(head)]
        row = self.row or 0
        title = Text(
            "Head {head}, row {row} ({tokens}), written out",
            head=head,
            row=row,
            tokens=self.trace.tokens[row],
        )
        most = KEYS_SHOWN if self.row is None else OPENED
        blocks.append(Heading(title, 4))
        return blocks + written_out(self.trace, head, row, self.precision, most)

    def scaling(self, head: int) -> list[Block]:
        if self.usual:
            text = Text("Scale: divide by √d_k.")
            formula = _indexed("S̃_%d = S_%d / √d_k", r"\tilde{S}_{%d} = S_{%d} / \sqrt{d_k}", head)
        else:
            scale = f"{self.trace.scale:g}"
            text = Text("Scale: multiply by c = {scale}.", scale=scale)
            formula = _indexed("S̃_%d = c S_%d", r"\tilde{S}_{%d} = c\, S_{%d}", head)
        return [Paragraph(text), formula, *self.quantity("scaled", head)]

    def later(self) -> list[tuple[str, str, str]]:
        """What follows the scaling: key, formula in plain text, formula in LaTeX."""
        scores, tex = ("Ŝ", r"\hat{S}_{%d}") if self.trace.changed else ("S̃", r"\tilde{S}_{%d}")
        rest = [
            ("softmax", f"A_%d = softmax({scores}_%d)", rf"A_{{%d}} = \mathrm{{softmax}}({tex})"),
            ("head", "head_%d = A_%d V_%d", r"\mathrm{head}_{%d} = A_{%d} V_{%d}"),
        ]
        biased = ("masked", "Ŝ_%d = S̃_%d + B_%d", r"\hat{S}_{%d} = \tilde{S}_{%d} + B_{%d}")
        return [biased, *rest] if self.trace.changed else rest

    def blind_rows(self, head: int) -> list[Block]:
        blind = ~self.trace.get("masked", head).isfinite().any(-1)
        rows = blind.nonzero()[:, 0].tolist()
        if not rows:
            return []
        listed = ", ".join(map(str, rows[:SMALL])) + (", …" if len(rows) > SMALL else "")
        text = Text("Rows that see no key ({listed}) have weights 0 and output 0.", listed=listed)
        return [Paragraph(text)]

    def drawn(self, head: int) -> list[Block]:
        """The weights of a head that is too large to be shown whole, as a picture."""
        tokens = self.trace.tokens
        if not SMALL < len(tokens) <= DRAWN:
            return []
        weights = self.trace.get("softmax", head)
        seen = self.trace.get("masked", head).isfinite()
        values = weights.masked_fill(~seen, torch.nan).tolist()
        title = Text("Weights of head {head}", head=head)
        return [HeatMap(title, values, tokens, tokens)]

    def concatenate(self) -> list[Block]:
        formula = Formula(
            "Concat = [head_1, …, head_H]",
            r"\mathrm{Concat} = [\mathrm{head}_1, \ldots, \mathrm{head}_H]",
        )
        values = self.trace.get("concat")
        return [
            _step(4, Text("Put the heads side by side")),
            formula,
            *self.matrix("Concat", r"\mathrm{Concat}", values, self.trace.tokens),
        ]

    def result(self) -> list[Block]:
        bias = " + b^O" if self.trace.projections.out_bias is not None else ""
        formula = Formula(
            f"Output = Concat W^O{bias}", rf"\mathrm{{Output}} = \mathrm{{Concat}}\, W^O{bias}"
        )
        values = self.trace.get("output")
        return [
            _step(5, Text("Project the result")),
            formula,
            *([] if self.plain_weights else self.weights(("out",))),
            *self.matrix("Output", r"\mathrm{Output}", values, self.trace.tokens),
        ]

    def quantity(self, key: str, head: int) -> list[Block]:
        """One matrix of one head under its symbol."""
        plain, latex = _SYMBOLS[key]
        pairs = key in ("score", "scaled", "masked", "softmax")
        most = SMALL if self.head is None else OPENED
        labels = (self.trace.tokens, self.trace.tokens if pairs else ())
        symbol = Formula(f"{plain}_{head}", latex % head)
        return shown(self.trace.get(key, head), symbol, self.precision, labels, most)

    def matrix(
        self, plain: str, latex: str, values: Tensor, rows: Sequence[str] = ()
    ) -> list[Block]:
        return shown(values, Formula(plain, latex), self.precision, (rows, ()))


_SYMBOLS = {
    "q": ("Q", "Q_{%d}"),
    "k": ("K", "K_{%d}"),
    "v": ("V", "V_{%d}"),
    "score": ("S", "S_{%d}"),
    "scaled": ("S̃", r"\tilde{S}_{%d}"),
    "masked": ("Ŝ", r"\hat{S}_{%d}"),
    "softmax": ("A", "A_{%d}"),
    "head": ("head", r"\mathrm{head}_{%d}"),
}


_WHOLE = (
    Formula(
        "MultiHead(X) = Concat(head_1, …, head_H) W^O",
        r"\mathrm{MultiHead}(X) = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_H)\, W^O",
    ),
)


def _indexed(plain: str, latex: str, head: int) -> Formula:
    """A formula of one head; every ``%d`` is its number."""
    return Formula(*(text.replace("%d", str(head)) for text in (plain, latex)))


def _step(number: int, en: str, zh: str) -> Heading:
    return Heading(Text(f"Step {number}: {en}", f"第 {number} 步：{zh}"))


def _is_identity(weight: Tensor) -> bool:
    square = weight.shape[0] == weight.shape[1]
    return square and torch.equal(weight.double(), torch.eye(len(weight), dtype=torch.float64))
