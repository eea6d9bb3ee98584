"""The strided pattern of the Sparse Transformer."""

from headwise.lang import Text
from headwise.masks.base import Mask
from headwise.masks.causal import causal
from headwise.masks.checks import whole
from headwise.masks.every import every
from headwise.masks.window import window


def strided(stride: int) -> Mask:
    """The last ``stride`` keys, and every ``stride``-th one before them; causal.

    It is ``causal() & (window(stride, 0) | every(stride))``: the union of both heads of the paper.

    Args:
        stride: l, about the square root of the length; at least 1.

    Raises:
        BadType, BadValue: if it is no integer, below 1 or above 2^31 - 1.

    Source: Child et al. 2019, section 4.3, A(1) and A(2) of the strided pattern.

    Example:
        >>> print(strided(3).draw(7))
        ■ · · · · · ·
        ■ ■ · · · · ·
        ■ ■ ■ · · · ·
        ■ ■ ■ ■ · · ·
        · ■ ■ ■ ■ · ·
        · · ■ ■ ■ ■ ·
        ■ · · ■ ■ ■ ■
    """
    whole("strided", "stride", stride, 1, Text("sqrt(length) is usual"))
    return causal() & (window(stride, 0) | every(stride))
