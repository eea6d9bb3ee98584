"""What single wrong numbers have in common with the right ones: truncated, swapped, a lost sign."""

import math
from typing import TYPE_CHECKING

from headwise.check.expression_tree import Printed
from headwise.lang import Text

if TYPE_CHECKING:
    from headwise.check.verdicts.matching import Reading
    from headwise.check.verdicts.verdict import WrongCell


def shared_pattern(wrong: "list[WrongCell]") -> Text | None:
    """What explains each of the wrong numbers by itself, or None."""
    fitting = (name for name, fits in _PATTERNS if all(fits(w.cell, w.exact) for w in wrong))
    return next(fitting, None)


def pattern_of(wrong: "list[WrongCell]", reading: "Reading", base: int) -> Text:
    """What explains the wrong numbers of one array, from the numbers alone."""
    shared = shared_pattern(wrong)
    if shared is not None:
        return shared
    rows = {one.target.place(*one.at)[0] for one in wrong}
    copied = _copied_row(wrong, reading, base) if len(rows) == 1 else None
    if copied is not None:
        return copied
    if len(wrong) == 1:
        total = _row_sum(wrong[0], reading)
        if total is not None:
            return Text("a single number is wrong: its row adds up to {total}, not 1", total=total)
        return Text("a single number is wrong")
    if len(rows) == 1:
        return Text("row {row} is wrong", row=min(rows) + base)
    return Text("{count} numbers are wrong", count=len(wrong))


def _is_truncated(cell: Printed, exact: float) -> bool:
    if not cell.step or not math.isfinite(exact):
        return False
    cut = math.trunc(exact / cell.step + math.copysign(1e-6, exact)) * cell.step
    return abs(cut - cell.value) < cell.step / 10


def _has_wrong_sign(cell: Printed, exact: float) -> bool:
    return exact != 0 and cell.right(-exact)


def _is_shifted(cell: Printed, exact: float) -> bool:
    powers = (10.0, 100.0, 0.1, 0.01)
    return exact != 0 and any(cell.right(exact * power) and cell.value for power in powers)


def _has_swapped_digits(cell: Printed, exact: float) -> bool:
    a = [c for c in cell.text.removesuffix("%") if c.isdigit()]
    b = [c for c in cell.corrected(exact).removesuffix("%") if c.isdigit()]
    if len(a) != len(b):
        return False
    off = [n for n in range(len(a)) if a[n] != b[n]]
    return len(off) == 2 and a[off[0]] == b[off[1]] and a[off[1]] == b[off[0]]


_PATTERNS = (
    (Text("truncated instead of rounded"), _is_truncated),
    (Text("the sign is wrong"), _has_wrong_sign),
    (Text("the decimal point is at the wrong place"), _is_shifted),
    (Text("two digits are swapped"), _has_swapped_digits),
)


def _copied_row(wrong: "list[WrongCell]", reading: "Reading", base: int) -> Text | None:
    """Whether a wrong row holds the numbers of another row."""
    grid = next((grid for grid, target in reading.parts if target is wrong[0].target), None)
    target = wrong[0].target
    if grid is None or target.dims != 2 or len(wrong) < 2:
        return None
    at = wrong[0].at[0]
    for other, values in enumerate(target.values):
        cells = grid.rows[at]
        if other != at and all(
            cell is not None and cell.right(exact)
            for cell, exact in zip(cells, values, strict=True)
        ):
            return Text("row {row} repeats row {other}", row=at + base, other=other + base)
    return None


def _row_sum(wrong: "WrongCell", reading: "Reading") -> str | None:
    """The sum of the printed row of weights that a wrong number stands in, if it is not 1."""
    target = wrong.target
    grid = next((grid for grid, part in reading.parts if part is target), None)
    if grid is None or target.key != "softmax" or target.dims == 0 or target.turned:
        return None
    cells = [cell for cell in grid.rows[wrong.at[0]] if cell is not None]
    total, step = sum(cell.value for cell in cells), max(cell.step for cell in cells)
    if abs(total - 1) <= step * (len(cells) / 2 + 0.5):
        return None
    return f"{total:.6g}"
