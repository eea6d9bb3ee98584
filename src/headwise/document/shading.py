"""A heat map as characters, for places that cannot draw."""

import math
from collections.abc import Sequence

from headwise.lang import Text

SHADES = " ░▒▓█"
BLOCKED = "·"
LARGEST = 48
"""Cells on a side; a larger map is pooled, each cell the largest weight of its block."""

LEGEND = Text(
    "each cell a weight: '{shades}' from 0 to 1 in fifths, '{blocked}' not allowed",
    shades=SHADES,
    blocked=BLOCKED,
)


def shade(value: float) -> str:
    """The character for one weight.

    Example:
        >>> "".join(shade(v) for v in (0.0, 0.3, 0.5, 0.7, 1.0, float("nan")))
        ' ░▒▓█·'
    """
    if math.isnan(value):
        return BLOCKED
    return SHADES[min(max(int(value * len(SHADES)), 0), len(SHADES) - 1)]


def pool(values: Sequence[Sequence[float]], step: int) -> list[list[float]]:
    """The largest weight of every block of ``step`` rows and columns; NaN where all is NaN."""
    width = len(values[0]) if values else 0
    return [
        [_largest(values[i : i + step], j, step) for j in range(0, width, step)]
        for i in range(0, len(values), step)
    ]


def step_of(rows: int, columns: int) -> int:
    """How many rows and columns one cell stands for, so that the map stays small enough."""
    return max(1, math.ceil(max(rows, columns) / LARGEST))


def pooled(step: int) -> Text:
    """What a pooled map says about itself."""
    return Text("each cell is the largest weight of {step} × {step} pairs", step=step)


def _largest(rows: Sequence[Sequence[float]], start: int, step: int) -> float:
    known = [v for row in rows for v in row[start : start + step] if not math.isnan(v)]
    return max(known, default=math.nan)
