"""The fixed pattern of the Sparse Transformer."""

from dataclasses import dataclass

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.masks.base import Mask, Tile
from headwise.masks.causal import causal
from headwise.masks.checks import whole
from headwise.shapes import Index, Truth


@dataclass(frozen=True, repr=False)
class Fixed(Mask):
    """The mask of `fixed`."""

    block: int
    summary: int

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del b, h
        own = q // self.block == k // self.block
        return (k <= q) & (own | (k % self.block >= self.block - self.summary))

    def tile(self, q: range, k: range) -> Tile:
        behind, kind = causal().tile(q, k), self._either_way(q, k)
        if Tile.EMPTY in (behind, kind):
            return Tile.EMPTY
        return Tile.FULL if behind is kind is Tile.FULL else Tile.MIXED

    def _either_way(self, q: range, k: range) -> Tile:
        """What the rectangle holds, were later keys seen too."""
        own = {q[0] // self.block, q[-1] // self.block}
        blocks = {k[0] // self.block, k[-1] // self.block}
        first = self.block - self.summary
        if len(own | blocks) == 1:
            return Tile.FULL
        if len(blocks) == 1 and k[0] % self.block >= first:
            return Tile.FULL
        apart = k[-1] // self.block < min(own) or k[0] // self.block > max(own)
        before = len(blocks) == 1 and k[-1] % self.block < first
        return Tile.EMPTY if apart and before else Tile.MIXED

    @property
    def name(self) -> str:
        return f"fixed({self.block}, {self.summary})"


def fixed(block: int, summary: int) -> Mask:
    """The own block, and the last ``summary`` keys of every block, both causal.

    Args:
        block: l, the length of a block, at least 1.
        summary: c, how many keys at the end of a block everybody sees; from 0 to ``block``.

    Raises:
        BadType, BadValue: if an argument is no integer or out of range.

    Source: Child et al. 2019, section 4.3, A(1) and A(2) of the fixed pattern.

    Example:
        >>> print(fixed(3, 1).draw(7))
        ■ · · · · · ·
        ■ ■ · · · · ·
        ■ ■ ■ · · · ·
        · · ■ ■ · · ·
        · · ■ ■ ■ · ·
        · · ■ ■ ■ ■ ·
        · · ■ · · ■ ■
    """
    whole("fixed", "block", block, 1, Text("128 is usual"))
    whole("fixed", "summary", summary, 0, Text("0 sees the own block only"))
    if summary > block:
        raise BadValue(
            "fixed: summary must be at most block, got {summary} and {block}; with all "
            "of them it is causal()",
            summary=summary,
            block=block,
        )
    return Fixed(block, summary)
