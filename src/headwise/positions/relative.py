"""Relative positions of queries and keys that stand in a row, without an index for each pair.

Row r of n queries and column j of m keys lie at the difference key - query of place j - r + n - 1
among the n + m - 1 differences there are, from the least. So what is known for each difference
becomes what is known for each pair by looking at it askew.
"""

import torch
from torch import Tensor


def differences(query: Tensor, key: Tensor) -> Tensor:
    """Every key - query from the least, (n + m - 1,), of places (n,) and (m,) in a row.

    Both may go on by a step other than 1, if it is the same.

    Example:
        >>> differences(torch.tensor([5, 6]), torch.tensor([4, 5, 6]))
        tensor([-2, -1,  0,  1])
    """
    count = len(query) + len(key) - 1
    step = query[1] - query[0] if len(query) > 1 else key[1] - key[0] if len(key) > 1 else 1
    return key[0] - query[-1] + torch.arange(count, device=query.device) * step


def askew(products: Tensor, rows: int) -> Tensor:
    """Of each query against each difference, (..., n, n + m - 1), those of its keys: (..., n, m).

    A view, with last stride 1, of rows that lie one after the other.

    Example:
        >>> askew(torch.tensor([[-2, -1, 0, 1], [-2, -1, 0, 1]]), 2)
        tensor([[-1,  0,  1],
                [-2, -1,  0]])
    """
    if rows == 1:
        return products
    count = products.shape[-1]
    flat = products.flatten(-2)[..., rows - 1 : rows * count - 1]
    return torch.unflatten(flat, -1, (rows, count - 1))[..., : count - rows + 1]


def unrolled(line: Tensor, rows: int) -> Tensor:
    """What every query has alike for a difference, (..., n + m - 1), for each pair: (..., n, m).

    Example:
        >>> unrolled(torch.tensor([-2, -1, 0, 1]), 2)
        tensor([[-1,  0,  1],
                [-2, -1,  0]])
    """
    return askew(line[..., None, :].expand(*line.shape[:-1], rows, -1), rows)


def products(rows: Tensor, vectors: Tensor, scale: float) -> Tensor:
    """rows (..., n, D) times vectors (..., T, D) times the scale, in float32 at least."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    return (rows.to(wide) * scale) @ vectors.to(wide).mT
