"""One row of one head written out term by term, as on paper."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from headwise.document import Block, Formula, Paragraph, Working
from headwise.document.text_format import decimal, latex
from headwise.explain.trace import Trace
from headwise.lang import Text

MOST_TERMS = 8
"""The longest sum that is written out; of a longer one the first three terms and the last."""

KEYS_SHOWN = 12
"""The most keys that are written out: those with the largest weights."""

LARGE_SCORE = 20.0
"""Above this magnitude the largest score is subtracted before exp."""


def row_derivation(trace: Trace, head: int, row: int, precision: int, most: int) -> list[Block]:
    """One row step by step: dot products, scale, bias and mask, softmax, weighted sum.

    Args:
        trace: the attention.
        head: which head, from 1.
        row: which query, from 0.
        precision: decimals.
        most: the most keys.
    """
    writer = _Row.of(trace, head, row, precision, most)
    blocks: list[Block] = [*writer.opening(), *writer.scores(), *writer.scaled()]
    if trace.changed_by_mask:
        blocks += writer.masked()
    if writer.fully_masked:
        return [*blocks, Paragraph(_FULLY_MASKED)]
    return [*blocks, *writer.exponentials(), *writer.weights(), *writer.output()]


_FULLY_MASKED = Text("This query sees no key: all its weights are 0, and so is its output.")


@dataclass(frozen=True, eq=False)
class _Row:
    """One row, and the keys that are written out."""

    trace: Trace
    head: int
    row: int
    precision: int
    keys: tuple[int, ...]

    @classmethod
    def of(cls, trace: Trace, head: int, row: int, precision: int, most: int) -> "_Row":
        weights = trace.get("softmax", head)[row]
        strongest = weights.argsort(descending=True, stable=True)
        visible = trace.get("masked", head)[row].isfinite()[strongest]
        if len(weights) > KEYS_SHOWN and bool(visible.any()):
            strongest = strongest[visible]
        return cls(trace, head, row, precision, tuple(sorted(strongest[:most].tolist())))

    def numbers(self, key: str) -> Tensor:
        return self.trace.get(key, self.head)[self.row]

    @property
    def fully_masked(self) -> bool:
        return not bool(self.numbers("masked").isfinite().any())

    @property
    def shift(self) -> float:
        """The number subtracted from every score before exp; 0 unless a score is large."""
        scores = self.numbers("masked")
        peak = scores[scores.isfinite()].max().item()
        return peak if abs(peak) > LARGE_SCORE else 0.0

    @property
    def left_out(self) -> int:
        return len(self.trace.tokens) - len(self.keys)

    @property
    def ellipsis(self) -> Formula:
        """Dots at the end of a sum over keys if a key with a weight above 0 is left out."""
        weights = self.numbers("softmax")
        counted = int((weights > 0).sum()) > int((weights[list(self.keys)] > 0).sum())
        return Formula(" + …", r" + \cdots") if counted else Formula("", "")

    def opening(self) -> list[Block]:
        if not self.left_out:
            return []
        count = len(self.keys)
        text = Text(
            "Written out: the {count} keys of largest weight; {left_out} are left out.",
            count=count,
            left_out=self.left_out,
        )
        return [Paragraph(text)]

    def scores(self) -> list[Block]:
        query, keys, dots = self.numbers("q"), self.trace.get("k", self.head), self.numbers("score")
        lines = []
        for j in self.keys:
            pairs = [
                (_term(a, self.precision), _term(b, self.precision))
                for a, b in zip(query.tolist(), keys[j].tolist(), strict=True)
            ]
            plain = _sum([f"{a.plain}×{b.plain}" for a, b in pairs], "…")
            tex = _sum([rf"{a.latex} \times {b.latex}" for a, b in pairs], r"\cdots")
            lines.append(self.line("s", j, Formula(plain, tex), dots[j].item()))
        text = Text("Dot product of query {row} with each key:", row=self.row)
        return [Paragraph(text), Working(lines)]

    def scaled(self) -> list[Block]:
        dots, scaled, scale = self.numbers("score"), self.numbers("scaled"), self.trace.scale
        dim = self.trace.get("q", self.head).shape[1]
        standard = scale == 1.0 / math.sqrt(dim)
        factor = _term(scale, max(self.precision, 4))
        lines = []
        for j in self.keys:
            dot = _term(dots[j].item(), self.precision)
            how = (
                Formula(f"{dot.plain} / √{dim}", rf"{dot.latex} / \sqrt{{{dim}}}")
                if standard
                else Formula(f"{dot.plain}×{factor.plain}", rf"{dot.latex} \times {factor.latex}")
            )
            lines.append(self.line("s̃", j, how, scaled[j].item()))
        root = _equal(Formula(f"√d_k = √{dim}", ""), math.sqrt(dim), self.precision).plain
        text = (
            Text("Divide by {root}:", root=root)
            if standard
            else Text("Multiply by the scale {plain}:", plain=factor.plain)
        )
        return [Paragraph(text), Working(lines)]

    def masked(self) -> list[Block]:
        scaled, masked = self.numbers("scaled"), self.numbers("masked")
        lines = []
        for j in self.keys:
            if not math.isfinite(masked[j].item()):
                lines.append(
                    Formula(f"ŝ[{self.row},{j}] = -∞", self.symbol("ŝ", j) + r" = -\infty")
                )
                continue
            bias = _term((masked[j] - scaled[j]).item(), self.precision)
            before = _term(scaled[j].item(), self.precision)
            how = Formula(f"{before.plain} + {bias.plain}", f"{before.latex} + {bias.latex}")
            if masked[j] == scaled[j]:
                how = Formula(f"s̃[{self.row},{j}]", self.symbol("s̃", j))
            lines.append(self.line("ŝ", j, how, masked[j].item()))
        text = Text("Add the bias; a key that this query may not see gets −∞:")
        return [Paragraph(text), Working(lines)]

    def exponentials(self) -> list[Block]:
        masked, shift = self.numbers("masked"), self.shift
        raised = (masked - shift).exp()
        lines = []
        for j in self.keys:
            score = masked[j].item() - shift
            name = Formula(f"e^{decimal(score, self.precision)}", self.power(score))
            lines.append(_equal(name, raised[j].item(), self.precision))
        terms = [_term(raised[j].item(), self.precision) for j in self.keys]
        total = Formula(
            " + ".join(t.plain for t in terms) + self.ellipsis.plain,
            " + ".join(t.latex for t in terms) + self.ellipsis.latex,
        )
        whole = Formula(f"Z = {total.plain}", f"Z = {total.latex}")
        lines.append(_equal(whole, raised.sum().item(), self.precision))
        text = Text("Exponentials and their sum Z:")
        if shift:
            text = Text(
                "Exponentials after subtracting the largest score {peak}, which changes no weight:",
                peak=decimal(shift, self.precision),
            )
        return [Paragraph(text), Working(lines)]

    def weights(self) -> list[Block]:
        masked, shift = self.numbers("masked"), self.shift
        raised, weights = (masked - shift).exp(), self.numbers("softmax")
        total = _term(raised.sum().item(), self.precision)
        lines = []
        for j in self.keys:
            part = _term(raised[j].item(), self.precision)
            how = Formula(f"{part.plain} / {total.plain}", f"{part.latex} / {total.latex}")
            lines.append(self.line("a", j, how, weights[j].item()))
        text = Text("Weights: each exponential divided by Z; they sum to 1:")
        return [Paragraph(text), Working(lines)]

    def output(self) -> list[Block]:
        weights, values = self.numbers("softmax"), self.trace.get("v", self.head)
        terms = [
            (_term(weights[j].item(), self.precision), _vector(values[j].tolist(), self.precision))
            for j in self.keys
        ]
        plain = " + ".join(f"{a.plain}×{v.plain}" for a, v in terms) + self.ellipsis.plain
        tex = " + ".join(rf"{a.latex} \times {v.latex}" for a, v in terms) + self.ellipsis.latex
        result = _vector(self.numbers("head").tolist(), self.precision, result=True)
        line = Formula(
            f"head_{self.head}[{self.row}] = {plain} ≈ {result.plain}",
            rf"\mathrm{{head}}_{{{self.head}}}[{self.row}] = {tex} \approx {result.latex}",
        )
        text = Text("Output: each row of V times its weight, added up:")
        return [Paragraph(text), Working([line])]

    def symbol(self, letter: str, key: int) -> str:
        tex = {"s̃": r"\tilde{s}", "ŝ": r"\hat{s}"}.get(letter, letter)
        return f"{tex}_{{{self.row},{key}}}"

    def line(self, letter: str, key: int, how: Formula, value: float) -> Formula:
        name = Formula(
            f"{letter}[{self.row},{key}] = {how.plain}", f"{self.symbol(letter, key)} = {how.latex}"
        )
        return _equal(name, value, self.precision)

    def power(self, score: float) -> str:
        return f"e^{{{latex(score, self.precision)}}}"


def _equal(left: Formula, value: float, precision: int) -> Formula:
    """``left = value``, or ``≈`` where the value is rounded."""
    text, tex = decimal(value, precision), latex(value, precision)
    exact = not math.isfinite(value) or math.isclose(float(text), value, rel_tol=1e-12)
    sign = ("=", "=") if exact else ("≈", r"\approx")
    return Formula(f"{left.plain} {sign[0]} {text}", f"{left.latex} {sign[1]} {tex}")


def _term(value: float, precision: int) -> Formula:
    """A number in a sum: without trailing zeros, in brackets if negative.

    Example:
        >>> _term(0.5, 4).plain, _term(-0.2, 4).plain
        ('0.5', '(-0.2)')
    """
    text, tex = (_trim(kind(value, precision)) for kind in (decimal, latex))
    return Formula(f"({text})", f"({tex})") if text.startswith("-") else Formula(text, tex)


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text and text[-1].isdigit() else text


def _sum(terms: Sequence[str], dots: str) -> str:
    if len(terms) > MOST_TERMS:
        terms = [*terms[:3], dots, terms[-1]]
    return " + ".join(terms)


def _vector(values: Sequence[float], precision: int, *, result: bool = False) -> Formula:
    """A row of numbers in brackets; ``result`` keeps trailing zeros."""
    write = (lambda text: text) if result else _trim
    plain = [write(decimal(v, precision)) for v in values]
    tex = [write(latex(v, precision)) for v in values]
    if len(values) > MOST_TERMS:
        plain = [*plain[:3], "…", plain[-1]]
        tex = [*tex[:3], r"\ldots", tex[-1]]
    return Formula(f"[{', '.join(plain)}]", f"[{', '.join(tex)}]")
