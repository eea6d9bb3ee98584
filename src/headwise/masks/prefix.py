"""A prefix that everybody sees."""

from collections.abc import Sequence

from torch import Tensor

from headwise.lang import Text
from headwise.masks.base import Mask
from headwise.masks.causal import causal
from headwise.masks.padding import Padding, real_or_lengths


def prefix(lengths: int | Sequence[int] | Tensor) -> Mask:
    """Causal, but for a prefix that every query sees in both directions.

    It is ``causal() | padding(lengths)``.

    Args:
        lengths: how long the prefix is: one number for all samples, or one for each.

    Raises:
        BadType, BadValue: if a length is no integer, negative or above 2^31 - 1, or, when called,
            if B does not fit.

    Source: Raffel et al. 2020 (T5), section 3.2.1, figure 4, right.

    Example:
        >>> print(prefix(2).draw(4))
        ■ ■ · ·
        ■ ■ · ·
        ■ ■ ■ ·
        ■ ■ ■ ■
    """
    each = [lengths] if isinstance(lengths, int) else lengths
    nothing = Text("0 is causal()")
    return causal() | Padding(real_or_lengths("prefix", each, nothing), prefix=True)
