"""How a matrix is shown: whole while it is small, else its shape, its range and a corner."""

from collections.abc import Sequence

from torch import Tensor

from headwise.document import Block, Formula, Matrix, Paragraph
from headwise.document.numbers import decimal
from headwise.lang import Text

SMALL = 12
"""Rows or columns up to which a matrix is shown whole."""

OPENED = 64
"""The same for the head that was asked for."""

CORNER = 4
"""Rows and columns of the corner that is shown of a large matrix."""


def shown(
    values: Tensor,
    symbol: Formula,
    precision: int,
    labels: tuple[Sequence[str], Sequence[str]] = ((), ()),
    most: int = SMALL,
) -> list[Block]:
    """The blocks that show one matrix.

    Args:
        values: (rows, columns).
        symbol: what it is called.
        precision: decimals in the sentence about a large one.
        labels: of its rows and of its columns.
        most: rows or columns up to which it is shown whole.
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
    return [
        Paragraph(_described(values, symbol.plain, precision)),
        Matrix(corner, part, rows[:height], columns[:width]),
    ]


def _described(values: Tensor, name: str, precision: int) -> Text:
    size = " × ".join(map(str, values.shape))
    known = values[values.isfinite()]
    blocked = values.numel() - known.numel()
    if not known.numel():
        return Text("{name}: {size}, every entry −∞.", name=name, size=size)
    low, high, mean = (
        decimal(v.item(), precision) for v in (known.min(), known.max(), known.mean())
    )
    en, zh = Text(", {blocked} entries −∞", blocked=blocked) if blocked else ("", "")
    return Text(
        f"{name}: {size}, from {low} to {high}, mean {mean}{en}. Its top left corner:",
        f"{name}：{size}，从 {low} 到 {high}，均值 {mean}{zh}。左上角：",
    )
