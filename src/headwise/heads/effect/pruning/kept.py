"""Which heads of an attention stay, and which key/value heads they read."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True)
class Kept:
    """What stays of one attention.

    Attributes:
        heads: the numbers of the query heads that stay, ascending.
        silent: whether they have nothing to say: all were to go, and as few stay as can be, with
            output weights of 0.
        groups: the numbers of the key/value heads that stay, because a query head reads them.
        order: for each key/value head that attention is shown, its number among ``groups``. Where
            the groups keep different numbers of query heads, some are shown several times.
        shown: the same heads, by the numbers under which they were shown before.
        share: how many query heads read each key/value head that is shown.
    """

    heads: tuple[int, ...]
    silent: bool
    groups: tuple[int, ...]
    order: tuple[int, ...]
    shown: tuple[int, ...]
    share: int

    @property
    def plain(self) -> bool:
        """Whether each key/value head is shown once, as the libraries have it."""
        return self.order == tuple(range(len(self.groups)))


def kept_of(total: int, order: Sequence[int], gone: set[int]) -> Kept:
    """What stays of an attention.

    Args:
        total: how many query heads there are.
        order: for each key/value head that they are shown, its number: (0, 1, 2) for three of
            which each is shown once.
        gone: the query heads that go.

    Example:
        >>> kept = kept_of(6, (0, 1, 2), {0, 1, 4})  # 2, 3 share group 1; 5 is alone on group 2
        >>> kept.heads, kept.groups, kept.order, kept.share
        ((2, 3, 5), (1, 2), (0, 0, 1), 1)
        >>> kept_of(6, (0, 1, 2), {0, 2, 4}).order  # one head of each group
        (0, 1, 2)
    """
    each = total // len(order)
    heads = [number for number in range(total) if number not in gone]
    silent = not heads
    heads = heads or [0]
    read = [order[number // each] for number in heads]
    groups = sorted(set(read))
    counts = [read.count(group) for group in groups]
    share = gcd(*counts)
    new = tuple(n for n, count in enumerate(counts) for _ in range(count // share))
    shown = tuple(number // each for number in heads[::share])
    return Kept(tuple(heads), silent, tuple(groups), new, shown, share)
