"""Convert matrices to blocks of a document: whole, summarised, or side by side."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from torch import Tensor

from headwise.document import Block, Formula, Matrix, Paragraph, SideBySide
from headwise.document.text_format import decimal
from headwise.lang import Text, same

SMALL, SELECTED = 12, 64
"""The maximum size of a matrix that is shown whole, by default and for a selected head."""

CORNER = 4  # the number of rows and columns shown of a larger matrix


def side_by_side(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks, with consecutive matrices joined into one block."""
    result: list[Block] = []
    for is_matrix, group in groupby(blocks, key=lambda block: isinstance(block, Matrix)):
        some = list(group)
        if is_matrix and len(some) > 1:
            result.append(SideBySide([block for block in some if isinstance(block, Matrix)]))
        else:
            result += some
    return result


def matrix_blocks(
    values: Tensor,
    symbol: Formula,
    precision: int,
    labels: tuple[Sequence[str], Sequence[str]] = ((), ()),
    most: int = SMALL,
) -> list[Block]:
    """Convert a matrix to blocks: whole up to ``most`` rows or columns, else a summary.

    A summary gives the range, with ``precision`` decimals, and the top left corner. ``labels``
    contains the labels of the rows and of the columns.
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
    summary = Paragraph(_summary(values, symbol.plain, precision))
    return [summary, Matrix(corner, part, rows[:height], columns[:width])]


def _summary(values: Tensor, name: str, precision: int) -> Text:
    size = " × ".join(map(str, values.shape))
    finite = values[values.isfinite()]
    blocked = values.numel() - finite.numel()
    if not finite.numel():
        return Text("{name}: {size}, all entries are −∞.", name=name, size=size)
    numbers = (finite.min(), finite.max(), finite.mean())
    low, high, mean = (decimal(number.item(), precision) for number in numbers)
    return Text(
        "{name}: {size}, from {low} to {high}, mean {mean}{blocked}. The top left corner is:",
        name=name,
        size=size,
        low=low,
        high=high,
        mean=mean,
        blocked=Text(", {count} entries are −∞", count=blocked) if blocked else same(""),
    )
