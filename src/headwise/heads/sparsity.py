"""How sparse a whole map of attention is: what few columns and diagonals of it hold.

These need all rows of a text at once, which sums over queries do not keep.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.errors import BadValue

LAST = 64
"""How many of the last queries columns and diagonals are chosen by. Source: Jiang et al. 2024."""


def vertical_slash(
    weights: Float[Tensor, "h l l"], *, verticals: int, slashes: int, last: int = LAST
) -> Float[Tensor, " h"]:
    """The share of attention that the best columns and diagonals of each head hold, (H,).

    The columns (one key for all queries) and diagonals (one distance for all queries) are chosen
    by the sums of the last queries, and hold what they hold of the whole map; where a column and a
    diagonal cross, the weight counts once.

    Args:
        weights: of a text's heads, (H, L, L).
        verticals: how many columns.
        slashes: how many diagonals.
        last: how many of the last queries they are chosen by.

    Raises:
        BadValue: if the maps are not square, or a number is not positive.

    Source: Jiang et al. 2024 (MInference), algorithm 2 and section 3.2; recall of the pattern.

    Example:
        >>> vertical_slash(torch.eye(4)[None], verticals=1, slashes=1)
        tensor([1.])
    """
    if weights.dim() != 3 or weights.shape[-1] != weights.shape[-2]:
        raise BadValue(
            "weights: expected (H, L, L), got {weights_shape}; give one text's heads",
            weights_shape=tuple(weights.shape),
        )
    for name, number in (("verticals", verticals), ("slashes", slashes), ("last", last)):
        if number < 1:
            raise BadValue(
                "{name}: expected a number from 1 on, got {number}; use {name}=1 for the least",
                name=name,
                number=number,
            )
    heads, length, _ = weights.shape
    place = torch.arange(length, device=weights.device)
    diagonal = place[:, None] - place + length - 1  # (L, L), from 0 to 2 L - 2
    end = weights[:, -last:]
    columns = end.sum(1)  # (H, L)
    sums = weights.new_zeros(heads, 2 * length - 1)
    sums.index_add_(1, diagonal[-last:].flatten(), end.flatten(1))
    chosen = _marked(columns, verticals)[:, None] | _marked(sums, slashes)[:, diagonal]
    return (weights * chosen).sum((1, 2)) / weights.sum((1, 2))


def _marked(sums: Tensor, most: int) -> Tensor:
    """True at the largest of each row."""
    best = sums.topk(min(most, sums.shape[1]), -1).indices
    return torch.zeros_like(sums, dtype=torch.bool).scatter_(1, best, True)
