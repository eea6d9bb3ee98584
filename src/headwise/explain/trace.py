"""Compute every number of one multi-head attention in float64, and convert them to JSON.

Source of the symbols: Vaswani et al. 2017, section 3.2. Heads are numbered from 1, as in the paper
and in worked examples; rows are numbered from 0. `as_json` writes numbers in full precision:

    {
      "format": "headwise.explain/1",
      "tokens": ["我", …],                  one token for each query (row of X)
      "key_tokens": ["我", …],              one token for each key; as "tokens" in self-attention
      "heads": 2,                            H
      "scale": 0.7071067811865475,           the factor on the scores
      "changed_by_mask": false,              whether a mask, bias or position changes the scores
      "formulas": {"score": "S_h = …", …},   the LaTeX formula of each key
      "quantities": [                        in the order of the computation
        {
          "key": "softmax",                  a key of `KEYS` or `OPTIONAL_KEYS`
          "head": 1,                         from 1; null for a quantity of all heads
          "name": {"en": …, "zh": …},
          "symbol": "A_{1}",                 LaTeX
          "shape": [3, 3],
          "values": [[0.37, …], …]           row by row; null for a score of -inf (blocked)
        }, …
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
from headwise.explain.array_files import TokenArray
from headwise.explain.projections import Projections
from headwise.lang import Text
from headwise.masks import Mask
from headwise.positions import Position, Stage
from headwise.reference import Steps, reference

__all__ = ["Projections", "Quantity", "Trace", "as_json", "check_ranges", "trace"]

MOST_SCORES = 2**23
"""The maximum number of scores, H · Lq · Lk; a trace stores several float64 copies of them."""

MOST_PRECISION = 15


@dataclass(frozen=True, eq=False)
class Quantity:
    """One matrix of the computation, with its name and its LaTeX symbol.

    ``key`` is a key of `KEYS` or `OPTIONAL_KEYS`. ``head`` counts from 1; None means all heads.
    ``values`` is (rows, columns) in float64; rows are queries, or keys for "k" and "v".
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

OPTIONAL_KEYS = {
    "kv": (Text("input of keys and values"), r"X_{\mathrm{kv}}"),
    "placed": (Text("input plus position"), r"X + P"),
    "placed_kv": (Text("input of keys and values plus position"), r"X_{\mathrm{kv}} + P"),
    "turned_q": (Text("queries of the head, rotated"), "Q'_{%d}"),
    "turned_k": (Text("keys of the head, rotated"), "K'_{%d}"),
    "position": (Text("position bias"), "P_{%d}"),
}
"""The quantities that occur only in cross-attention or with a position encoding."""

PER_HEAD = (
    *("q", "k", "v", "turned_q", "turned_k", "score", "scaled", "position", "masked", "softmax"),
    "head",
)


@dataclass(frozen=True, eq=False)
class Trace:
    """All numbers of one multi-head attention.

    ``tokens`` labels the rows of X, and ``key_tokens`` the keys. ``scale`` is the factor on the
    scores. ``changed_by_mask`` says whether a mask, a bias or a position changes the scores.
    ``quantities`` is in the order of the computation.
    """

    tokens: tuple[str, ...]
    key_tokens: tuple[str, ...]
    heads: int
    scale: float
    projections: Projections
    changed_by_mask: bool
    quantities: tuple[Quantity, ...]

    def has(self, key: str) -> bool:
        """Return whether the trace contains a quantity with this key."""
        return any(quantity.key == key for quantity in self.quantities)

    def get(self, key: str, head: int | None = None) -> Tensor:
        """Return the values of one quantity; ``head`` counts from 1. Raise `BadValue` if absent."""
        for quantity in self.quantities:
            if (quantity.key, quantity.head) == (key, head):
                return quantity.values
        raise BadValue(
            "trace: there is no quantity {key!r} of head {head}; valid keys are {keys}",
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
    kv: TokenArray | None = None,
    position: Position | None = None,
) -> Trace:
    """Compute one multi-head attention and record every number.

    Args:
        x: the input (L, E).
        heads: H, the number of heads; without ``projections`` it must divide E.
        projections: the weights; None means identity projections.
        tokens: L labels for the rows; None labels them 0 to L - 1.
        mask: the mask, and possibly a bias on the scores.
        scale: the factor on the scores; None means 1/sqrt(D).
        kv: in cross-attention, the input of the keys and values (Lk, E_kv); None means x.
        position: the position encoding; an effect on the values is not recorded.

    Raises:
        BadValue: if a size does not fit; the message names the argument.

    Example:
        >>> t = trace(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), heads=1, scale=1.0)
        >>> t.get("softmax", 1)[0].tolist() == [torch.e / (1 + torch.e), 1 / (1 + torch.e)]
        True
    """
    keys = x if kv is None else kv.values
    weights = Projections.identity(x.shape[-1]) if projections is None else projections
    _check_input("x", x)
    _check_input("kv", keys)
    _check_sizes(x, keys, heads, tokens)
    weights.check(x.shape[1], keys.shape[1], heads)
    inputs, values = _inputs(x, None if kv is None else keys, position)
    for name, given in zip("QKV", (inputs[0], inputs[1], inputs[1]), strict=True):
        values[name] = weights.project(given, name.lower())
    # each (1, H, L, D)
    q, k, v = (values[n].reshape(len(values[n]), heads, -1).transpose(0, 1)[None] for n in "QKV")
    later = None if "placed" in values else position  # q, k and v contain an added position
    call = Call.of(q, k, v, mask=mask, scale=scale, position=later)
    steps = reference(call)
    values |= _per_head(call, steps)
    values["concat"] = steps.output[0].transpose(0, 1).flatten(1)  # (L, H Dv)
    values["output"] = weights.project(values["concat"], "out")
    labels = _labels(tokens, x)
    changed = call.mask.biased or not bool(steps.allowed.all()) or "position" in values
    own = labels if kv is None else _labels(kv.tokens, keys)
    quantities = tuple(_quantities(values, heads))
    return Trace(labels, own, heads, call.scale, weights, changed, quantities)


def _labels(tokens: Sequence[str] | None, rows: Tensor) -> tuple[str, ...]:
    return tuple(map(str, range(len(rows))) if tokens is None else tokens)


def _inputs(
    x: Tensor, keys: Tensor | None, position: Position | None
) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
    """Return the inputs of the query and of the key/value projections, and their quantities."""
    given = {"x": x.detach().to(torch.float64)}
    if keys is not None:
        given["kv"] = keys.detach().to(torch.float64)
    ends = [given[name] for name in given]
    if position is not None and Stage.INPUT in position.stages:
        names = ("placed", "placed_kv")
        with torch.no_grad():
            ends = [position.embed(end[None])[0] for end in ends]
        given |= dict(zip(names, ends, strict=False))
    return (ends[0], ends[-1]), given


def _per_head(call: Call, steps: Steps) -> dict[str, Tensor]:
    """Return the quantities of every head, (H, L, ...).

    They contain all keys of K, although the reference sets keys masked for all queries to 0.
    """
    with torch.no_grad():
        turned, against = call.position.content(call.q, call.k, call.shape)
        bias = call.position.bias(call.q, *call.position_ids(), call.scale)
    own = {"q": call.q[0], "k": call.k[0], "v": call.v[0]}
    if Stage.CONTENT in call.position.stages:
        own |= {"turned_q": turned[0], "turned_k": against[0]}
    dots = turned[0] @ against[0].transpose(-2, -1)  # (H, L, L)
    own |= {"score": dots, "scaled": dots * call.scale}
    if bias is not None:
        own["position"] = bias[0].to(torch.float64).expand_as(dots)
    own |= {"masked": steps.scores[0], "softmax": steps.weights[0], "head": steps.output[0]}
    return own


def _quantities(values: dict[str, Tensor], heads: int) -> list[Quantity]:
    texts = KEYS | OPTIONAL_KEYS

    def of_all_heads(*keys: str) -> list[Quantity]:
        return [Quantity(key, None, values[key], *texts[key]) for key in keys if key in values]

    own = []
    for head, key in product(range(heads), PER_HEAD):
        if key in values:
            name, latex = texts[key]
            own.append(Quantity(key, head + 1, values[key][head], name, latex % (head + 1)))
    inputs = of_all_heads("x", "kv", "placed", "placed_kv", "Q", "K", "V")
    return [*inputs, *own, *of_all_heads("concat", "output")]


def _check_input(name: str, x: Tensor) -> None:
    if x.dim() != 2 or not x.is_floating_point() or not x.numel():
        raise BadValue(
            "{name}: expected a matrix (L, E) with at least one row and column, got {shape}",
            name=name,
            shape=tuple(x.shape),
        )
    if not bool(x.isfinite().all()):
        row, column = (~x.isfinite()).nonzero()[0].tolist()
        raise BadValue(
            "{name}: expected finite numbers, got {value} in row {row}, column {column} (both "
            "counted from 0); replace this number",
            name=name,
            value=x[row, column].item(),
            row=row,
            column=column,
        )


def _check_sizes(x: Tensor, keys: Tensor, heads: int, tokens: Sequence[str] | None) -> None:
    if len(x) * len(keys) * heads > MOST_SCORES:
        raise BadValue(
            "x: expected at most {most:,} scores, got {scores:,} for {rows} rows of x and {heads} "
            "heads; use fewer rows",
            most=MOST_SCORES,
            scores=len(x) * len(keys) * heads,
            rows=len(x),
            heads=heads,
        )
    if tokens is not None and len(tokens) != len(x):
        raise BadValue(
            "tokens: expected {expected} tokens, one for each row of x, got {got}",
            expected=len(x),
            got=len(tokens),
        )


def check_ranges(trace: Trace, head: int | None, row: int | None, precision: int) -> None:
    """Raise `BadValue` if the head, the row or the precision is out of range."""
    ranges = (
        ("head", head, 1, trace.heads),
        ("row", row, 0, len(trace.tokens) - 1),
        ("precision", precision, 0, MOST_PRECISION),
    )
    for name, value, low, high in ranges:
        if value is not None and not low <= value <= high:
            raise BadValue(
                "{name}: expected an integer from {low} to {high}, got {value}",
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
"""The formula of each quantity. c is the scale; b (bias) and B (mask and bias) may be 0."""


OPTIONAL_FORMULAS = {
    "kv": r"X_{\mathrm{kv}}",
    "placed": "X + P",
    "placed_kv": r"X_{\mathrm{kv}} + P",
    "turned_q": "Q'_h = R Q_h",
    "turned_k": "K'_h = R K_h",
    "position": "P_h",
}
"""R rotates each row by angles that depend on its position; P is the added position encoding."""


def formulas(trace: Trace) -> dict[str, str]:
    """Return the formula of each quantity of a trace."""
    present = {quantity.key for quantity in trace.quantities}
    optional = {key: text for key, text in OPTIONAL_FORMULAS.items() if key in present}
    result = {**FORMULAS, **optional}
    source = "(X + P)" if "placed" in present else "X"
    keys = source.replace("X", r"X_{\mathrm{kv}}") if "kv" in present else source
    for name, given in zip("QKV", (source, keys, keys), strict=True):
        result[name] = f"{name} = {given} W^{name} + b^{name}"
    if "turned_q" in present:
        result["score"] = r"S_h = Q'_h {K'_h}^\top"
    if "position" in present:
        result["masked"] = r"\hat{S}_h = \tilde{S}_h + P_h + B_h"
    return result


def as_json(trace: Trace, *, head: int | None = None, precision: int | None = None) -> str:
    """Convert a trace to JSON in the format above.

    ``head``, from 1, selects one head; quantities of all heads are always included. ``precision``
    is the number of decimals; None means full precision.

    Raises:
        BadValue: if there are more than `MOST_NUMBERS` numbers, or the head does not exist.
    """
    check_ranges(trace, head, None, precision or 0)
    selected = [q for q in trace.quantities if head is None or q.head in (None, head)]
    count = sum(quantity.values.numel() for quantity in selected)
    if count > MOST_NUMBERS:
        raise BadValue(
            "format: JSON can contain at most {most:,} numbers, got {count:,}; select one head, or "
            "use fewer rows",
            most=MOST_NUMBERS,
            count=count,
        )
    content = {
        "format": FORMAT,
        "tokens": list(trace.tokens),
        "key_tokens": list(trace.key_tokens),
        "heads": trace.heads,
        "scale": trace.scale,
        "changed_by_mask": trace.changed_by_mask,
        "formulas": formulas(trace),
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
