"""How much a head's attention changes with what the text says: content against position."""

from jaxtyping import Float
from torch import Tensor

from headwise.errors import BadValue

FIRST = 10
"""How many tokens of each text are looked at. Source: Vig & Belinkov 2019, section 4.4."""


def variability(weights: Float[Tensor, "x h l l"], *, first: int = FIRST) -> Float[Tensor, " h"]:
    """How far each head's maps lie from their mean over texts, 0 (position alone) to 1, (H,).

        Σ_x Σ_i Σ_j |A_x[i,j] - mean_x A[i,j]| / (2 Σ_x Σ_i Σ_j A_x[i,j])

    Args:
        weights: the heads on several texts, (X, H, L, L), cut to one length.
        first: how many tokens of each count.

    Raises:
        BadValue: if there are fewer than two texts, or they are shorter than ``first``.

    Source: Vig & Belinkov 2019, section 4.4, equation 3.
    """
    if weights.dim() != 4 or len(weights) < 2 or min(weights.shape[-2:]) < first:
        raise BadValue(
            "weights: expected (texts, H, L, L) of two texts or more and L from {first} "
            "on, got {weights_shape}; leave out shorter texts, or lower first",
            first=first,
            weights_shape=tuple(weights.shape),
        )
    shown = weights[..., :first, :first]
    apart = (shown - shown.mean(0)).abs().sum((0, 2, 3))
    return apart / (2 * shown.sum((0, 2, 3)))
