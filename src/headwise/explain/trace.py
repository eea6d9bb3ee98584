"""Every number of one multi-head self-attention, computed in float64, and its JSON.

Source of the symbols: Vaswani et al. 2017, section 3.2. Heads are numbered from 1 as in the paper
and in worked examples, rows from 0. The JSON of `as_json`, with every digit that float64 needs:

    {
      "format": "headwise.explain/1",
      "tokens": ["我", …],                  one for each row
      "heads": 2,                            H
      "scale": 0.7071067811865475,           the factor on the scores
      "changed_by_mask": false,              whether a mask or a bias changed the scores
      "formulas": {"score": "S_h = …", …},   LaTeX, by key
      "quantities": [
        {
          "key": "softmax",                  one of `headwise.explain.trace.KEYS`
          "head": 1,                         from 1; null for a quantity of all heads
          "name": {"en": …, "zh": …},
          "symbol": "A_{1}",                 LaTeX
          "shape": [3, 3],
          "values": [[0.37, …], …]           row by row; null for a score of -inf (blocked)
        }, …                                 in the order of the computation
      ]
    }
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from headwise.call import Call
from headwise.errors import BadValue
from headwise.lang import Text
from headwise.masks import Mask
from headwise.reference import reference

MOST_SCORES = 2**23
"""The most scores, H L L, of one trace, which keeps several float64 copies of them."""

WIDEST = 4096  # the most columns of X for which projections (E, E) are built

MOST_PRECISION = 15


@dataclass(frozen=True, eq=False)
class Projections:
    """The weights of the four projections, laid out as in `torch.nn.Linear`: y = x Wᵀ + b.

    q, k: (H D, E). v: (H Dv, E). out: (E, H Dv). A bias has a number for each row; None is 0.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    out_bias: Tensor | None = None

    @classmethod
    def identity(cls, embed_dim: int) -> "Projections":
        """Projections with Q = K = V = X; raises `BadValue` for more than `WIDEST` columns."""
        check_width(embed_dim)
        eye = torch.eye(embed_dim, dtype=torch.float64)
        return cls(eye, eye, eye, eye)


@dataclass(frozen=True, eq=False)
class Quantity:
    """One named matrix of the computation, with its name in words and its symbol.

    ``key`` is one of `KEYS`, ``head`` counts from 1 and is None for all heads, and ``values`` are
    (rows, columns) in float64; rows are queries, or keys for "k" and "v".
    """

    key: str
    head: int | None
    values: Tensor
    name: Text
    latex: str


KEYS = {
    "x": (Text("input"), "X"),
    "Q": (Text("queries"), "Q"),
    "K": (Text("keys"), "K"),
    "V": (Text("values"), "V"),
    "q": (Text("queries of the head"), "Q_{%d}"),
    "k": (Text("keys of the head"), "K_{%d}"),
    "v": (Text("values of the head"), "V_{%d}"),
    "score": (Text("scores"), "S_{%d}"),
    "scaled": (Text("scaled scores"), r"\tilde{S}_{%d}"),
    "masked": (Text("scores with bias and mask"), r"\hat{S}_{%d}"),
    "softmax": (Text("softmax"), "A_{%d}"),
    "head": (Text("output of the head"), r"\mathrm{head}_{%d}"),
    "concat": (Text("concatenation"), r"\mathrm{Concat}"),
    "output": (Text("output"), r"\mathrm{Output}"),
}
"""The quantities in the order of the computation: name and LaTeX symbol."""

PER_HEAD = ("q", "k", "v", "score", "scaled", "masked", "softmax", "head")


@dataclass(frozen=True, eq=False)
class Trace:
    """One attention with all its numbers.

    ``tokens`` label the rows of X, ``scale`` is the factor on the scores, ``changed_by_mask`` is
    whether a mask or a bias changed the scores, and ``quantities`` are in the order of computation.
    """

    tokens: tuple[str, ...]
    heads: int
    scale: float
    projections: Projections
    changed_by_mask: bool
    quantities: tuple[Quantity, ...]

    def get(self, key: str, head: int | None = None) -> Tensor:
        """The values of one quantity, or `BadValue` if there is none; ``head`` counts from 1."""
        for quantity in self.quantities:
            if (quantity.key, quantity.head) == (key, head):
                return quantity.values
        raise BadValue(
            "trace: no quantity {key!r} of head {head}; keys are {keys}",
            key=key,
            head=head,
            keys=", ".join(KEYS),
        )


def trace(
    x: Tensor,
    heads: int,
    *,
    projections: Projections | None = None,
    tokens: Sequence[str] | None = None,
    mask: Mask | Tensor | None = None,
    scale: float | None = None,
) -> Trace:
    """Compute one multi-head self-attention and keep every number.

    Args:
        x: the input (L, E).
        heads: H; without ``projections`` it must divide E.
        projections: the weights; None means identity.
        tokens: L labels; None numbers the rows.
        mask: which pairs may attend, and the bias that is added to the scores.
        scale: factor on the scores; None means 1/sqrt(D).

    Raises:
        BadValue: if a size does not fit; the message names it.

    Example:
        >>> t = trace(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), heads=1, scale=1.0)
        >>> t.get("softmax", 1)[0].tolist() == [torch.e / (1 + torch.e), 1 / (1 + torch.e)]
        True
    """
    weights = Projections.identity(x.shape[-1]) if projections is None else projections
    _check(x, heads, weights, tokens)
    wide = x.detach().to(torch.float64)
    whole = {name: _project(wide, weights, name.lower()) for name in "QKV"}
    # each (1, H, L, D)
    q, k, v = (whole[name].reshape(len(x), heads, -1).transpose(0, 1)[None] for name in "QKV")
    call = Call.of(q, k, v, mask=mask, scale=scale)
    # The reference sets the keys that no query sees to 0; a reader expects the columns of K.
    dots = q[0] @ k[0].transpose(-2, -1)  # (H, L, L)
    own = {"q": q[0], "k": k[0], "v": v[0], "score": dots, "scaled": dots * call.scale}
    steps = reference(call)
    own |= {"masked": steps.scores[0], "softmax": steps.weights[0], "head": steps.output[0]}
    concat = steps.output[0].transpose(0, 1).flatten(1)  # (L, H Dv)
    values = {"x": wide, **whole, **own, "concat": concat}
    values["output"] = _project(concat, weights, "out")
    labels = tuple(map(str, range(len(x))) if tokens is None else tokens)
    changed_by_mask = call.mask.biased or not bool(steps.allowed.all())
    quantities = tuple(_quantities(values, heads))
    return Trace(labels, heads, call.scale, weights, changed_by_mask, quantities)


def _quantities(values: dict[str, Tensor], heads: int) -> list[Quantity]:
    def of_all_heads(*keys: str) -> list[Quantity]:
        return [Quantity(key, None, values[key], *KEYS[key]) for key in keys]

    own = []
    for head, key in product(range(heads), PER_HEAD):
        name, latex = KEYS[key]
        own.append(Quantity(key, head + 1, values[key][head], name, latex % (head + 1)))
    return [*of_all_heads("x", "Q", "K", "V"), *own, *of_all_heads("concat", "output")]


def _project(x: Tensor, weights: Projections, name: str) -> Tensor:
    weight, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
    wide = None if bias is None else bias.detach().to(torch.float64)
    return torch.nn.functional.linear(x, weight.detach().to(torch.float64), wide)


def _check(x: Tensor, heads: int, weights: Projections, tokens: Sequence[str] | None) -> None:
    if x.dim() != 2 or not x.is_floating_point() or not x.numel():
        raise BadValue(
            "x: expected numbers (L, E), at least one row and column, got {shape}",
            shape=tuple(x.shape),
        )
    if not bool(x.isfinite().all()):
        row, column = (~x.isfinite()).nonzero()[0].tolist()
        raise BadValue(
            "x: every number must be finite, got {value} in row {row}, column {column}; replace it",
            value=x[row, column].item(),
            row=row,
            column=column,
        )
    if len(x) ** 2 * heads > MOST_SCORES:
        raise BadValue(
            "x: expected at most {most:,} scores, got {scores:,} from {rows} "
            "rows and {heads} heads; give fewer rows",
            most=MOST_SCORES,
            scores=len(x) ** 2 * heads,
            rows=len(x),
            heads=heads,
        )
    if tokens is not None and len(tokens) != len(x):
        raise BadValue(
            "tokens: expected {expected}, one for each row of x, got {got}",
            expected=len(x),
            got=len(tokens),
        )
    _check_weights(x.shape[1], heads, weights)


def check_width(embed_dim: int) -> None:
    """Raise `BadValue` if X has more than `WIDEST` columns."""
    if embed_dim > WIDEST:
        raise BadValue(
            "x: expected at most {widest} columns, got {embed_dim}; give fewer",
            widest=WIDEST,
            embed_dim=embed_dim,
        )


def _check_weights(embed_dim: int, heads: int, weights: Projections) -> None:
    sizes = {"q": weights.q.shape[0], "k": weights.k.shape[0], "v": weights.v.shape[0]}
    for name, size in sizes.items():
        if heads < 1 or size % heads:
            raise BadValue(
                "heads: {heads} heads cannot share the {size} columns of {matrix} evenly; "
                "choose a divisor of {size}, or give projections to heads * head_dim",
                heads=heads,
                size=size,
                matrix=name.upper(),
            )
    shapes = {"q": (sizes["k"], embed_dim), "k": (sizes["k"], embed_dim)}
    shapes |= {"v": (sizes["v"], embed_dim), "out": (weights.out.shape[0], sizes["v"])}
    for name, shape in shapes.items():
        for label, expected in ((name, shape), (f"{name}_bias", shape[:1])):
            tensor = getattr(weights, label)
            if tensor is not None and tuple(tensor.shape) != expected:
                raise BadValue(
                    "weights: {name} must be {shape} for an input of {embed_dim} columns, "
                    "got {got}; rows are outputs, as in torch.nn.Linear",
                    name=label,
                    shape=expected,
                    embed_dim=embed_dim,
                    got=tuple(tensor.shape),
                )


def check_ranges(trace: Trace, head: int | None, row: int | None, precision: int) -> None:
    """Raise `BadValue` for a head, a row or a precision out of range."""
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


FORMAT = "headwise.explain/1"

MOST_NUMBERS = 2**22

FORMULAS = {
    "x": "X",
    **{name: f"{name} = X W^{name} + b^{name}" for name in "QKV"},
    **{name.lower(): f"{name}_h" for name in "QKV"},
    "score": r"S_h = Q_h K_h^\top",
    "scaled": r"\tilde{S}_h = c\, S_h",
    "masked": r"\hat{S}_h = \tilde{S}_h + B_h",
    "softmax": r"A_h = \mathrm{softmax}(\hat{S}_h)",
    "head": r"\mathrm{head}_h = A_h V_h",
    "concat": r"\mathrm{Concat} = [\mathrm{head}_1, \ldots, \mathrm{head}_H]",
    "output": r"\mathrm{Output} = \mathrm{Concat}\, W^O + b^O",
}
"""The definition of each quantity; c is the scale, b and B are 0 where there is none."""


def as_json(trace: Trace, *, head: int | None = None, precision: int | None = None) -> str:
    """The trace as JSON in the form above.

    ``head``, from 1, selects the quantities of one head and those of all heads; ``precision`` is
    the number of decimals, None for every digit.

    Raises:
        BadValue: if there are more than `MOST_NUMBERS` numbers, or no such head.
    """
    check_ranges(trace, head, None, precision or 0)
    selected = [q for q in trace.quantities if head is None or q.head in (None, head)]
    count = sum(quantity.values.numel() for quantity in selected)
    if count > MOST_NUMBERS:
        raise BadValue(
            "format: expected at most {most:,} numbers as JSON, got {count:,}; "
            "give one head, or fewer rows",
            most=MOST_NUMBERS,
            count=count,
        )
    content = {
        "format": FORMAT,
        "tokens": list(trace.tokens),
        "heads": trace.heads,
        "scale": trace.scale,
        "changed_by_mask": trace.changed_by_mask,
        "formulas": FORMULAS,
        "quantities": [_quantity(quantity, precision) for quantity in selected],
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _quantity(quantity: Quantity, precision: int | None) -> dict[str, object]:
    def number(value: float) -> float | None:
        if not math.isfinite(value):
            return None
        return value if precision is None else round(value, precision)

    return {
        "key": quantity.key,
        "head": quantity.head,
        "name": {"en": quantity.name.en, "zh": quantity.name.zh},
        "symbol": quantity.latex,
        "shape": list(quantity.values.shape),
        "values": [list(map(number, row)) for row in quantity.values.tolist()],
    }
