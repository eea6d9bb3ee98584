"""Write out one row of one head term by term, as in a calculation by hand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from headwise.document import Block, Formula, Paragraph, Working
from headwise.document.text_format import decimal, latex
from headwise.explain.trace import Trace
from headwise.lang import Text

MOST_TERMS = 8
"""The maximum number of terms in a sum; of a longer sum, the first three and the last are shown."""

KEYS_SHOWN = 12  # the default number of keys written out: those with the largest weights
LARGE_SCORE = 20.0  # if the largest score is larger in magnitude, it is subtracted before exp


def row_derivation(trace: Trace, head: int, row: int, precision: int, most: int) -> list[Block]:
    """Write out one row: dot products, scale, bias and mask, softmax, weighted sum.

    ``head`` counts from 1; ``row``, the query, counts from 0. At most ``most`` keys are shown.
    """
    writer = _Row.of(trace, head, row, precision, most)
    blocks: list[Block] = [*writer.opening(), *writer.scores(), *writer.scaled()]
    if trace.changed_by_mask:
        blocks += writer.masked()
    if not bool(writer.numbers("masked").isfinite().any()):
        text = Text("This query is fully masked, so its weights and its output are 0.")
        return [*blocks, Paragraph(text)]
    return [*blocks, *writer.exponentials(), *writer.weights(), *writer.output()]


@dataclass(frozen=True, eq=False)
class _Row:
    """The written derivation of one row, and the keys shown in it."""

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

    def exponents(self) -> tuple[Tensor, float]:
        """Return the scores as passed to exp, and the number subtracted from them, or 0."""
        scores = self.numbers("masked")
        peak = scores[scores.isfinite()].max().item()
        shift = peak if abs(peak) > LARGE_SCORE else 0.0
        return scores - shift, shift

    def ellipsis(self) -> Formula:
        """Return dots for the end of a sum if a key with a weight above 0 is left out."""
        weights = self.numbers("softmax")
        counted = int((weights > 0).sum()) > int((weights[list(self.keys)] > 0).sum())
        return Formula(" + …", r" + \cdots") if counted else Formula("", "")

    def opening(self) -> list[Block]:
        left_out = len(self.trace.key_tokens) - len(self.keys)
        text = Text(
            "Only the {count} keys with the largest weights are shown; {left_out} keys are left "
            "out.",
            count=len(self.keys),
            left_out=left_out,
        )
        return [Paragraph(text)] if left_out else []

    def scores(self) -> list[Block]:
        turned = "turned_" if self.trace.has("turned_q") else ""
        query, keys = self.numbers(f"{turned}q"), self.trace.get(f"{turned}k", self.head)
        dots = self.numbers("score")
        lines = []
        for j in self.keys:
            products = [
                _filled("%s×%s", r"%s \times %s", self.term(a), self.term(b))
                for a, b in zip(query, keys[j], strict=True)
            ]
            if len(products) > MOST_TERMS:
                products = [*products[:3], Formula("…", r"\cdots"), products[-1]]
            lines.append(self.line("s", j, _sum(products), dots[j]))
        text = Text("Dot product of query {row} with each key:", row=self.row)
        return [Paragraph(text), Working(lines)]

    def scaled(self) -> list[Block]:
        dots, scaled, scale = self.numbers("score"), self.numbers("scaled"), self.trace.scale
        dim = self.trace.get("q", self.head).shape[1]
        if scale == 1.0 / math.sqrt(dim):
            root = decimal(math.sqrt(dim), self.precision)
            exact = float(root) == math.sqrt(dim)
            text = Text(
                "Divide by $\\sqrt{{d_k}} = \\sqrt{{{dim}}} {sign} {root}$:",
                dim=dim,
                sign="=" if exact else r"\approx",
                root=root,
            )
            plain, tex = f"%s / √{dim}", rf"%s / \sqrt{{{dim}}}"
        else:
            factor = _term(scale, max(self.precision, 4))
            text = Text("Multiply by the scale {plain}:", plain=factor.plain)
            plain, tex = f"%s×{factor.plain}", rf"%s \times {factor.latex}"
        lines = [
            self.line("s̃", j, _filled(plain, tex, self.term(dots[j])), scaled[j]) for j in self.keys
        ]
        return [Paragraph(text), Working(lines)]

    def masked(self) -> list[Block]:
        scaled, masked = self.numbers("scaled"), self.numbers("masked")
        lines = []
        for j in self.keys:
            if not math.isfinite(masked[j].item()):
                lines.append(_filled("%s = -∞", r"%s = -\infty", self.symbol("ŝ", j)))
                continue
            how = self.symbol("s̃", j)
            if masked[j] != scaled[j]:
                how = _sum([self.term(scaled[j]), self.term(masked[j] - scaled[j])])
            lines.append(self.line("ŝ", j, how, masked[j]))
        text = Text("Add the bias; the score of a masked key is −∞:")
        if self.trace.has("position"):
            text = Text("Add the position bias and the bias; the score of a masked key is −∞:")
        return [Paragraph(text), Working(lines)]

    def exponentials(self) -> list[Block]:
        scores, shift = self.exponents()
        raised = scores.exp()
        lines = []
        for j in self.keys:
            plain, tex = (write(scores[j].item(), self.precision) for write in (decimal, latex))
            name = Formula(f"e^{plain}", f"e^{{{tex}}}")
            lines.append(_equal(name, raised[j].item(), self.precision))
        terms = _sum([self.term(raised[j]) for j in self.keys])
        whole = _filled("Z = %s%s", "Z = %s%s", terms, self.ellipsis())
        lines.append(_equal(whole, raised.sum().item(), self.precision))
        text = Text("Compute the exponentials and their sum $Z$:")
        if shift:
            text = Text(
                "Subtract the largest score {peak}, which does not change the weights, and compute "
                "the exponentials:",
                peak=decimal(shift, self.precision),
            )
        return [Paragraph(text), Working(lines)]

    def weights(self) -> list[Block]:
        raised, weights = self.exponents()[0].exp(), self.numbers("softmax")
        total = self.term(raised.sum())
        lines = []
        for j in self.keys:
            quotient = _filled("%s / %s", "%s / %s", self.term(raised[j]), total)
            lines.append(self.line("a", j, quotient, weights[j]))
        text = Text("Divide each exponential by $Z$; the resulting weights sum to 1:")
        return [Paragraph(text), Working(lines)]

    def output(self) -> list[Block]:
        weights, values = self.numbers("softmax"), self.trace.get("v", self.head)
        terms = []
        for j in self.keys:
            value = _vector(values[j].tolist(), self.precision)
            terms.append(_filled("%s×%s", r"%s \times %s", self.term(weights[j]), value))
        result = _vector(self.numbers("head").tolist(), self.precision, result=True)
        line = _filled(
            f"head_{self.head}[{self.row}] = %s%s ≈ %s",
            rf"\mathrm{{head}}_{{{self.head}}}[{self.row}] = %s%s \approx %s",
            _sum(terms),
            self.ellipsis(),
            result,
        )
        text = Text("Output: multiply each row of $V$ by its weight, and add up the products:")
        return [Paragraph(text), Working([line])]

    def term(self, value: Tensor) -> Formula:
        return _term(value.item(), self.precision)

    def symbol(self, letter: str, key: int) -> Formula:
        tex = {"s̃": r"\tilde{s}", "ŝ": r"\hat{s}"}.get(letter, letter)
        return Formula(f"{letter}[{self.row},{key}]", f"{tex}_{{{self.row},{key}}}")

    def line(self, letter: str, key: int, how: Formula, value: Tensor) -> Formula:
        left = _filled("%s = %s", "%s = %s", self.symbol(letter, key), how)
        return _equal(left, value.item(), self.precision)


def _filled(plain: str, tex: str, *parts: Formula) -> Formula:
    """Return a formula from two templates, with each ``%s`` replaced by a part."""
    return Formula(plain % tuple(p.plain for p in parts), tex % tuple(p.latex for p in parts))


def _sum(terms: Sequence[Formula]) -> Formula:
    return Formula(" + ".join(t.plain for t in terms), " + ".join(t.latex for t in terms))


def _equal(left: Formula, value: float, precision: int) -> Formula:
    """Return ``left = value``, or ``left ≈ value`` if the value is rounded."""
    text, tex = decimal(value, precision), latex(value, precision)
    exact = not math.isfinite(value) or math.isclose(float(text), value, rel_tol=1e-12)
    sign = ("=", "=") if exact else ("≈", r"\approx")
    return Formula(f"{left.plain} {sign[0]} {text}", f"{left.latex} {sign[1]} {tex}")


def _term(value: float, precision: int) -> Formula:
    """Write a number in a sum without trailing zeros, in parentheses if negative.

    Example:
        >>> _term(0.5, 4).plain, _term(-0.2, 4).plain
        ('0.5', '(-0.2)')
    """
    text, tex = (_trim(kind(value, precision)) for kind in (decimal, latex))
    return Formula(f"({text})", f"({tex})") if text.startswith("-") else Formula(text, tex)


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text and text[-1].isdigit() else text


def _vector(values: Sequence[float], precision: int, *, result: bool = False) -> Formula:
    """Write a row of numbers in brackets, with trailing zeros if ``result`` is true."""
    write = (lambda text: text) if result else _trim
    plain = [write(decimal(v, precision)) for v in values]
    tex = [write(latex(v, precision)) for v in values]
    if len(values) > MOST_TERMS:
        plain = [*plain[:3], "…", plain[-1]]
        tex = [*tex[:3], r"\ldots", tex[-1]]
    return Formula(f"[{', '.join(plain)}]", f"[{', '.join(tex)}]")
