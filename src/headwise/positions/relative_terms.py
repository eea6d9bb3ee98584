"""Terms of the scores that depend on the query and the difference key - query only.

Row r of n queries and column j of m keys lie at the difference key - query of place j - r + n - 1
among the n + m - 1 differences there are, from the least. So what is known for each difference
gives a value for each pair by a strided view of the same memory.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class RelativeTerms(NamedTuple):
    """A bias that depends on the query and on T consecutive differences key - query only.

    At a difference t it is scale · (query + shift) · vectors[t] + numbers[t]. All are in float32 at
    least, since their gradients are sums over many queries.
    """

    vectors: Tensor | None = None  # (H or 1, T, D); fastest where the last but one stride is 1
    shift: Tensor | None = None  # (H, D)
    numbers: Tensor | None = None  # (H, T), in place of vectors

    def at(self, where: slice) -> "RelativeTerms":
        """Some of the differences, as views."""
        vectors = None if self.vectors is None else self.vectors[:, where]
        numbers = None if self.numbers is None else self.numbers[:, where]
        return RelativeTerms(vectors, self.shift, numbers)

    def bias(self, q: Tensor, scale: float) -> Tensor:
        """(N or 1, H, n, m) for consecutive queries (N, H, n, D) and keys; T is n + m - 1."""
        return skew(self.products(q, scale), q.shape[2])

    def products(self, q: Tensor, scale: float) -> Tensor:
        """The bias of each query at each difference, (N or 1, H, n, T)."""
        if self.vectors is not None:
            products = (self.rows(q) * scale) @ self.vectors.mT
            samples, heads, count, _ = q.shape
            sizes = (heads, samples, count, self.vectors.shape[1])
            return products.view(sizes).transpose(0, 1)
        if self.numbers is None:
            raise ValueError("Relative: neither vectors nor numbers; use None for no bias")
        return self.numbers[None, :, None].expand(1, -1, q.shape[2], -1)

    def rows(self, q: Tensor) -> Tensor:
        """The shifted queries (N, H, n, D) as (H or 1, ·, D), for one product with all vectors."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        shared = 1 if self.vectors is None else self.vectors.shape[0]
        moved = q.to(dtype) if self.shift is None else q + self.shift[:, None]
        rows = moved.shape[1] // max(shared, 1) * q.shape[0] * q.shape[2]
        return moved.transpose(0, 1).reshape(shared, rows, q.shape[3])


def differences(query: Tensor, key: Tensor) -> Tensor:
    """Every key - query in order, (n + m - 1,), of positions (n,) and (m,) with the same step.

    Example:
        >>> differences(torch.tensor([5, 6]), torch.tensor([4, 5, 6]))
        tensor([-2, -1,  0,  1])
    """
    rows, columns = query.shape[0], key.shape[0]  # len() would be a constant of an export
    count = rows + columns - 1
    step = query[1] - query[0] if rows > 1 else key[1] - key[0] if columns > 1 else 1
    return key[0] - query[-1] + torch.arange(count, device=query.device) * step


def skew(products: Tensor, rows: int) -> Tensor:
    """From products of queries and differences, (..., n, n + m - 1), those of keys: (..., n, m).

    A view, with last stride 1, of contiguous rows.

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
