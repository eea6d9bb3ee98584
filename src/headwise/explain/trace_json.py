r"""A trace as JSON.

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

Numbers have every digit that float64 needs, unless ``precision`` is given.
"""

import json
import math

from headwise.errors import BadValue
from headwise.explain.trace import Quantity, Trace, check_ranges

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
