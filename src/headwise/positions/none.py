"""No position: attention sees a set of tokens."""

from headwise.positions.position import Position


class NoPosition(Position):
    """Adds nothing: a permutation of the tokens permutes the output.

    Example:
        >>> import torch
        >>> NoPosition().embed(torch.ones(1, 2, 3)).sum().item()
        6.0
    """
