"""How far the rounding of the given numbers may carry each computed one.

Articles print the input and the weights rounded and compute with what was not rounded. A matrix
counts as rounded when at least `MOST_EXACT` + 1 decimals are printed and most entries use the
last of them; 0.5 and 1.25 count as exact.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from headwise.check.nodes import Grid
from headwise.explain.trace import Projections, Trace

MOST_EXACT = 2
"""With at most this many decimals a given number is what it says."""

DRAWS, SAFETY = 24, 1.5
"""The input is shifted this many times, by half a printed step either way; the farthest result
times the safety factor is what rounding explains."""

Rows = list[list[float]]

_PARTS = ("q", "k", "v", "out", "q_bias", "k_bias", "v_bias", "out_bias")


def rounded(grid: Grid) -> bool:
    """Whether a given matrix is printed as rounded numbers are.

    Example:
        >>> from headwise.check.nodes import vector
        >>> from headwise.check.numbers import printed
        >>> [rounded(vector((printed(text, 1, 0),))) for text in ("0.25", "0.3713")]
        [False, True]
    """
    cells = grid.cells
    fine = [c for c in cells if 0 < c.step < 10.0**-MOST_EXACT * 0.99]
    used = [c for c in fine if c.text.rstrip("%\\ ")[-1:] not in ("0", ".")]
    return 2 * len(used) > len(cells)


def upper(grid: Grid) -> Rows:
    """The values of a whole grid, each half a step up where the grid is rounded."""
    if not rounded(grid):
        return grid.values
    return [[cell.value + cell.step / 2 for cell in row if cell is not None] for row in grid.rows]


def spread(
    run: Callable[[Tensor, Projections], Trace],
    low: tuple[Tensor, Projections],
    high: tuple[Tensor, Projections],
) -> dict[tuple[str, int | None], Rows]:
    """How far each quantity may be from that of the printed numbers; {} where those are exact.

    Args:
        run: the computation.
        low: the input and the projections as printed.
        high: the same, each entry half a step up where it may be rounded.
    """
    if _same(low, high):
        return {}
    exact = run(*low)
    far = [torch.zeros_like(quantity.values) for quantity in exact.quantities]
    generator = torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        moved = run(*_moved(low, high, generator))
        for at, (a, b) in enumerate(zip(exact.quantities, moved.quantities, strict=True)):
            off = torch.where(a.values == b.values, 0.0, (a.values - b.values).abs())
            far[at] = torch.maximum(far[at], off)
    return {
        (quantity.key, quantity.head): (SAFETY * most).tolist()
        for quantity, most in zip(exact.quantities, far, strict=True)
    }


def _same(low: tuple[Tensor, Projections], high: tuple[Tensor, Projections]) -> bool:
    return all(
        a is b or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(_tensors(low), _tensors(high), strict=True)
    )


def _tensors(given: tuple[Tensor, Projections]) -> list[Tensor | None]:
    return [given[0], *(getattr(given[1], name) for name in _PARTS)]


def _moved(
    low: tuple[Tensor, Projections], high: tuple[Tensor, Projections], generator: torch.Generator
) -> tuple[Tensor, Projections]:
    """Each entry half a step up or down."""

    def one(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        if a is None or b is None:
            return a
        sign = torch.randint(2, a.shape, generator=generator).double() * 2 - 1
        return a.double() + sign * (b.double() - a.double())

    x, *weights = map(one, _tensors(low), _tensors(high))
    q, k, v, out, *biases = weights
    if x is None or q is None or k is None or v is None or out is None:
        return low
    return x, Projections(q, k, v, out, *biases)
