"""Write the five steps of multi-head attention as a document, with every number."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.document import Block, Document, Formula, Heading, HeatMap, Matrix, Paragraph
from headwise.explain.matrix_blocks import SELECTED, SMALL, matrix_blocks, side_by_side
from headwise.explain.row_derivation import KEYS_SHOWN, row_derivation
from headwise.explain.trace import KEYS, OPTIONAL_KEYS, Trace, check_ranges
from headwise.lang import Text, enumeration

HEADS_SHOWN = 4
"""The maximum number of heads that are all shown; of more heads, only the first is shown."""

MOST_TOKENS_DRAWN = 512
"""The maximum number of tokens for which a heat map of the weights is drawn."""


def steps(
    trace: Trace, *, head: int | None = None, row: int | None = None, precision: int = 4
) -> Document:
    """Return a document that explains one multi-head attention.

    By default, matrices with more than 12 rows or columns are summarised, and only the first head
    is shown if there are more than four. One query is written out term by term for its 12 largest
    weights: the first query that attends to the most keys, which is query 0 without a mask and the
    last query with a causal mask.

    Args:
        trace: the numbers of the attention.
        head: show only this head, from 1 to H, and show matrices whole up to 64 rows and columns.
        row: write out this query, from 0 to L - 1, with up to 64 keys.
        precision: the number of decimals, from 0 to 15.

    Raises:
        BadValue: if ``head``, ``row`` or ``precision`` is out of range.
    """
    check_ranges(trace, head, row, precision)
    writer = _Steps(trace, head, row, precision)
    blocks = [*writer.opening(), *writer.project(), *writer.split(), *writer.attend()]
    blocks += [*writer.concatenate(), *writer.result()]
    return Document(Text("Multi-head attention, step by step"), tuple(blocks), precision)


_SOFTMAX = Text("Softmax over each row: the weights of a query are at least 0 and sum to 1.")
_SOFTMAX_SOME_MASKED = Text(
    "Softmax over each row: the weights of a query are at least 0 and sum to 1; "
    "the weights of a fully masked query are all 0."
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
        text = Text(
            "{length} tokens: {names}. Each token is a row of $X$ with $E$ = {width} numbers. "
            "There are $H$ = {heads} heads, each with $d_k$ = {dim} and $d_v$ = {value_dim}. Rows "
            "are numbered from 0, heads from 1. Every result is computed from unrounded numbers.",
            length=length,
            names=enumeration(trace.tokens, SMALL),
            width=width,
            heads=trace.heads,
            dim=trace.get("q", 1).shape[1],
            value_dim=trace.get("v", 1).shape[1],
        )
        blocks: list[Block] = [Paragraph(text), _DEFINITION]
        if trace.has("kv"):
            note = Text(
                "In cross-attention, the queries come from $X$, and the keys and values come from "
                "the {count} rows of $X_{{kv}}$: {names}.",
                count=len(trace.key_tokens),
                names=enumeration(trace.key_tokens, SMALL),
            )
            blocks.append(Paragraph(note))
        blocks += self.matrix("X", trace.get("x"), trace.tokens)
        for key, symbol in _INPUTS.items():
            if trace.has(key):
                labels = trace.key_tokens if "kv" in key else trace.tokens
                if key == "placed":
                    blocks.append(Paragraph(Text("The position encoding adds $P$ to the input:")))
                blocks += self.matrix(symbol, trace.get(key), labels, OPTIONAL_KEYS[key][1])
        return blocks

    def project(self) -> list[Block]:
        source, keys = self.sources
        formulas = [
            Formula(
                f"{letter} = {given.plain} W^{letter}" + self.bias(letter.lower(), letter),
                f"{letter} = {given.latex} W^{letter}" + self.bias(letter.lower(), letter),
            )
            for letter, given in zip("QKV", (source, keys, keys), strict=True)
        ]
        formula = Formula(
            ", ".join(f.plain for f in formulas), r",\quad ".join(f.latex for f in formulas)
        )
        title = Text("Project the input to queries, keys and values")
        blocks: list[Block] = [_step(1, title), formula, *self.weights("QKV")]
        q, k, v = (self.trace.get(name) for name in "QKV")
        if q.shape == k.shape == v.shape and torch.equal(q, k) and torch.equal(q, v):
            return [*blocks, *self.matrix("Q = K = V", q, self.trace.tokens)]
        own, others = self.trace.tokens, self.trace.key_tokens
        parts = zip("QKV", (q, k, v), (own, others, others), strict=True)
        return blocks + side_by_side(
            block for name, values, labels in parts for block in self.matrix(name, values, labels)
        )

    @property
    def sources(self) -> tuple[Formula, Formula]:
        """The symbols of the inputs of the query projection and of the key/value projections."""
        plain, latex = "X_kv", OPTIONAL_KEYS["kv"][1]
        if not self.trace.has("kv"):
            plain = latex = "X"
        if self.trace.has("placed"):
            return Formula("(X + P)", "(X + P)"), Formula(f"({plain} + P)", f"({latex} + P)")
        return Formula("X", "X"), Formula(plain, latex)

    def bias(self, name: str, letter: str) -> str:
        weights = self.trace.projections
        return f" + b^{letter}" if getattr(weights, f"{name}_bias") is not None else ""

    def weights(self, letters: str) -> list[Block]:
        """Return W of each projection as in the paper, columns being outputs, and the bias b."""
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
        return side_by_side(blocks)

    def split(self) -> list[Block]:
        dim, value_dim = (self.trace.get(key, 1).shape[1] for key in "qv")
        text = Text(
            "Each head takes {dim} columns of $Q$ and of $K$, and {value_dim} columns of $V$: head "
            "1 takes the first columns, head 2 the next columns, and so on.",
            dim=dim,
            value_dim=value_dim,
        )
        blocks: list[Block] = [_step(2, Text("Split into heads")), Paragraph(text)]
        if len(self.heads) < self.trace.heads:
            note = Text(
                "Only head {head} of {heads} is shown; use --head N to show another head.",
                head=self.heads[0],
                heads=self.trace.heads,
            )
            blocks.append(Paragraph(note))
        for head in self.heads:
            blocks += side_by_side(b for key in "qkv" for b in self.quantity(key, head))
        if self.trace.has("turned_q"):
            turn = Text(
                "The position encoding rotates each row of $Q_h$ and $K_h$ by angles that grow "
                "with the number of the row, so the scores depend on distances:"
            )
            blocks.append(Paragraph(turn))
            for head in self.heads:
                turned = ("turned_q", "turned_k")
                blocks += side_by_side(b for key in turned for b in self.quantity(key, head))
        return blocks

    def attend(self) -> list[Block]:
        standard, bias = self.standard_scale, " + B" if self.trace.changed_by_mask else ""
        bias = (" + P" if self.trace.has("position") else "") + bias
        plain, latex = "Q_h K_hᵀ", r"Q_h K_h^\top"
        if self.trace.has("turned_q"):
            plain, latex = "Q'_h K'_hᵀ", r"Q'_h {K'_h}^\top"
        latex = rf"\frac{{{latex}}}{{\sqrt{{d_k}}}}" if standard else rf"c\, {latex}"
        plain = f"{plain} / √d_k" if standard else f"c {plain}"
        formula = Formula(
            f"head_h = softmax({plain}{bias}) V_h",
            rf"\mathrm{{head}}_h = \mathrm{{softmax}}\left({latex}{bias}\right) V_h",
        )
        blocks: list[Block] = [_step(3, Text("Compute attention in each head")), formula]
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
            shown = [] if key == "position" else [formula]
            blocks += [Paragraph(explanation), *shown, *self.quantity(key, head)]
        blocks += [*masked_rows, *self.heat_map(head)]
        row = self.worked_row(head)
        token = self.trace.tokens[row]
        title = Text(
            "Derivation of head {head}, row {row} ({tokens})", head=head, row=row, tokens=token
        )
        most = KEYS_SHOWN if self.row is None else SELECTED
        blocks.append(Heading(title, 4))
        return blocks + row_derivation(self.trace, head, row, self.precision, most)

    def worked_row(self, head: int) -> int:
        """Return the row to write out: the selected row, or the first that attends to most keys."""
        if self.row is not None:
            return self.row
        return int(self.trace.get("masked", head).isfinite().sum(-1).argmax())

    def equations(self, softmax: Text) -> list[tuple[str, Text, str, str]]:
        """Return the key, explanation, formula and LaTeX of each step; ``%d`` is the head."""
        biased = self.trace.changed_by_mask
        scores, tex = ("Ŝ", r"\hat{S}_{%d}") if biased else ("S̃", r"\tilde{S}_{%d}")
        score = Text("Scores: the dot product of each query with each key.")
        product = ("S_%d = Q_%d K_%dᵀ", r"S_{%d} = Q_{%d} K_{%d}^\top")
        if self.trace.has("turned_q"):
            product = ("S_%d = Q'_%d K'_%dᵀ", r"S_{%d} = Q'_{%d} {K'_{%d}}^\top")
        scale = Text("Scale: multiply by $c$ = {scale}.", scale=f"{self.trace.scale:g}")
        scaled = ("S̃_%d = c S_%d", r"\tilde{S}_{%d} = c\, S_{%d}")
        if self.standard_scale:
            scale = Text("Scale: divide by $\\sqrt{d_k}$.")
            scaled = ("S̃_%d = S_%d / √d_k", r"\tilde{S}_{%d} = S_{%d} / \sqrt{d_k}")
        mask = Text("Bias and mask: add $B$, and set the scores of masked keys to −∞.")
        masked = ("Ŝ_%d = S̃_%d + B_%d", r"\hat{S}_{%d} = \tilde{S}_{%d} + B_{%d}")
        place = Text("Position: a bias for each pair, which depends on the distance.")
        if self.trace.has("position"):
            masked = (
                "Ŝ_%d = S̃_%d + P_%d + B_%d",
                r"\hat{S}_{%d} = \tilde{S}_{%d} + P_{%d} + B_{%d}",
            )
        output = Text("Weighted sum: add up the rows of $V$, multiplied by the query's weights.")
        weights = (f"A_%d = softmax({scores}_%d)", rf"A_{{%d}} = \mathrm{{softmax}}({tex})")
        return [
            ("score", score, *product),
            ("scaled", scale, *scaled),
            *([("position", place, "P_%d", "P_{%d}")] if self.trace.has("position") else []),
            *([("masked", mask, *masked)] if biased else []),
            ("softmax", softmax, *weights),
            ("head", output, "head_%d = A_%d V_%d", r"\mathrm{head}_{%d} = A_{%d} V_{%d}"),
        ]

    def masked_rows(self, head: int) -> list[Block]:
        """Return a sentence about the fully masked queries, or nothing if there are none."""
        masked = ~self.trace.get("masked", head).isfinite().any(-1)
        rows = masked.nonzero()[:, 0].tolist()
        if not rows:
            return []
        listed = enumeration(list(map(str, rows)), SMALL)
        text = Text("Fully masked queries ({listed}) have weights 0 and output 0.", listed=listed)
        return [Paragraph(text)]

    def heat_map(self, head: int) -> list[Block]:
        """Return the weights as a heat map if they are too large to be shown as numbers."""
        tokens, keys = self.trace.tokens, self.trace.key_tokens
        if not SMALL < max(len(tokens), len(keys)) <= MOST_TOKENS_DRAWN:
            return []
        allowed = self.trace.get("masked", head).isfinite()
        values = self.trace.get("softmax", head).masked_fill(~allowed, torch.nan).tolist()
        title = Text("Attention weights of head {head}", head=head)
        return [HeatMap(title, values, tokens, keys)]

    def concatenate(self) -> list[Block]:
        latex = r"\mathrm{Concat} = [\mathrm{head}_1, \ldots, \mathrm{head}_H]"
        formula = Formula("Concat = [head_1, …, head_H]", latex)
        values, tokens = self.trace.get("concat"), self.trace.tokens
        matrix = self.matrix("Concat", values, tokens, r"\mathrm{Concat}")
        return [_step(4, Text("Concatenate the heads")), formula, *matrix]

    def result(self) -> list[Block]:
        bias, output = self.bias("out", "O"), self.trace.get("output")
        formula = Formula(
            f"Output = Concat W^O{bias}", rf"\mathrm{{Output}} = \mathrm{{Concat}}\, W^O{bias}"
        )
        weights = [] if self.identity_projections else self.weights("O")
        matrix = self.matrix("Output", output, self.trace.tokens, r"\mathrm{Output}")
        return [_step(5, Text("Project the concatenation")), formula, *weights, *matrix]

    def quantity(self, key: str, head: int) -> list[Block]:
        trace, pairs = self.trace, key in ("score", "scaled", "position", "masked", "softmax")
        most = SMALL if self.head is None else SELECTED
        rows = trace.key_tokens if key in ("k", "v", "turned_k") else trace.tokens
        symbol = Formula(f"{_LETTERS[key]}_{head}", (KEYS | OPTIONAL_KEYS)[key][1] % head)
        blocks = matrix_blocks(
            trace.get(key, head),
            symbol,
            self.precision,
            (rows, trace.key_tokens if pairs else ()),
            most,
        )
        last = blocks[-1]
        if key in ("k", "v", "turned_k") or not isinstance(last, Matrix):
            return blocks
        row = self.worked_row(head)
        shown = replace(last, marked=row if row < len(last.values) else None)
        if key == "softmax":
            masked = ~trace.get("masked", head).isfinite()[
                : len(last.values), : len(last.values[0])
            ]
            shown = replace(shown, heat=True, masked=masked.tolist() if bool(masked.any()) else ())
        return [*blocks[:-1], shown]

    def matrix(
        self, name: str, values: Tensor, rows: Sequence[str] = (), latex: str = ""
    ) -> list[Block]:
        return matrix_blocks(values, Formula(name, latex or name), self.precision, (rows, ()))


_LETTERS = {"q": "Q", "k": "K", "v": "V", "score": "S", "scaled": "S̃", "masked": "Ŝ"}
_LETTERS |= {"softmax": "A", "head": "head", "turned_q": "Q'", "turned_k": "K'", "position": "P"}

_INPUTS = {"kv": "X_kv", "placed": "X + P", "placed_kv": "X_kv + P"}
"""The plain-text symbols of the inputs other than X."""

_DEFINITION = Formula(
    "MultiHead(X) = Concat(head_1, …, head_H) W^O",
    r"\mathrm{MultiHead}(X) = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_H)\, W^O",
)


def _step(number: int, title: Text) -> Heading:
    return Heading(Text("Step {number}: {title}", number=number, title=title))
