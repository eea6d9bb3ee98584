"""Terms of the scores that depend only on the query and the difference key - query.

Row r of n queries and column j of m keys have the difference with index j - r + n - 1 among the n +
m - 1 differences in increasing order. A strided view therefore turns one value per difference into
one value per pair, in the same memory.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class RelativeTerms(NamedTuple):
    """A bias that depends only on the query and on T consecutive differences key - query.

    At difference t it is scale · (query + shift) · vectors[t] + numbers[t]. All terms are at least
    float32, since their gradients are sums over many queries.
    """

    vectors: Tensor | None = None  # (H or 1, T, D); fastest if the stride of axis T is 1
    shift: Tensor | None = None  # (H, D)
    numbers: Tensor | None = None  # (H, T), instead of vectors

    def at(self, where: slice) -> "RelativeTerms":
        """Return the terms at some of the differences, as views."""
        vectors = None if self.vectors is None else self.vectors[:, where]
        numbers = None if self.numbers is None else self.numbers[:, where]
        return RelativeTerms(vectors, self.shift, numbers)

    def bias(self, q: Tensor, scale: float) -> Tensor:
        """Return (N or 1, H, n, m) for queries (N, H, n, D) and m keys; T = n + m - 1."""
        return skew(self.products(q, scale), q.shape[2])

    def products(self, q: Tensor, scale: float) -> Tensor:
        """Return the bias of each query at each difference, (N or 1, H, n, T)."""
        if self.vectors is not None:
            products = (self.rows(q) * scale) @ self.vectors.mT
            samples, heads, count, _ = q.shape
            sizes = (heads, samples, count, self.vectors.shape[1])
            return products.view(sizes).transpose(0, 1)
        if self.numbers is None:
            raise ValueError("Relative: neither vectors nor numbers; use None for no bias")
        return self.numbers[None, :, None].expand(1, -1, q.shape[2], -1)

    def rows(self, q: Tensor) -> Tensor:
        """Return the shifted queries (N, H, n, D) as (H or 1, ·, D), for a single product."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        shared = 1 if self.vectors is None else self.vectors.shape[0]
        moved = q.to(dtype) if self.shift is None else q + self.shift[:, None]
        rows = moved.shape[1] // max(shared, 1) * q.shape[0] * q.shape[2]
        return moved.transpose(0, 1).reshape(shared, rows, q.shape[3])


def differences(query: Tensor, key: Tensor) -> Tensor:
    """Return all key - query in order, (n + m - 1,), for positions (n,) and (m,) of equal step.

    Example:
        >>> differences(torch.tensor([5, 6]), torch.tensor([4, 5, 6]))
        tensor([-2, -1,  0,  1])
    """
    rows, columns = query.shape[0], key.shape[0]  # len() would be a constant in an export
    count = rows + columns - 1
    step = query[1] - query[0] if rows > 1 else key[1] - key[0] if columns > 1 else 1
    return key[0] - query[-1] + torch.arange(count, device=query.device) * step


def skew(products: Tensor, rows: int) -> Tensor:
    """Return values of query-key pairs (..., n, m) from query-difference pairs (..., n, n + m - 1).

    The result is a view with last stride 1; the input has contiguous rows.

    Example:
        >>> skew(torch.tensor([[-2, -1, 0, 1], [-2, -1, 0, 1]]), 2)
        tensor([[-1,  0,  1],
                [-2, -1,  0]])
    """
    if rows == 1:
        return products
    count = products.shape[-1]
    flat = products.flatten(-2)[..., rows - 1 : rows * count - 1]
    return torch.unflatten(flat, -1, (rows, count - 1))[..., : count - rows + 1]
