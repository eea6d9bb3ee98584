"""The patterns of the Sparse Transformer (Child et al. 2019): strided and fixed."""

from dataclasses import dataclass

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.masks.mask import Mask, Tile
from headwise.masks.patterns.by_distance import causal, window
from headwise.shapes import Index, Truth, check_integer


@dataclass(frozen=True, repr=False)
class Modular(Mask):
    """The mask of `every`."""

    step: int
    by_distance = True

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return (q - k) % self.step == 0

    def tile(self, q: range, k: range) -> Tile:
        if self.step == 1:
            return Tile.FULL
        nearest, furthest = q[0] - k[-1], q[-1] - k[0]
        if nearest // self.step == furthest // self.step and nearest % self.step:
            return Tile.EMPTY  # no multiple of the step lies between the two distances
        return Tile.FULL if nearest == furthest else Tile.MIXED

    @property
    def name(self) -> str:
        return f"every({self.step})"


def every(step: int) -> Mask:
    """Let queries attend to keys whose distance, behind or ahead, is a multiple of ``step``.

    Raises:
        BadType, BadValue: if ``step`` is not an integer, is below 1 or above 2^31 - 1.

    Example:
        >>> print(every(2).draw(3))
        ■ · ■
        · ■ ·
        ■ · ■
    """
    step = check_integer("every", "step", step, 1, Text("1 is full attention"))
    return Modular(step)


@dataclass(frozen=True, repr=False)
class Fixed(Mask):
    """The mask of `fixed`."""

    block: int
    summary: int

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        own = q // self.block == k // self.block
        return (k <= q) & (own | (k % self.block >= self.block - self.summary))

    def tile(self, q: range, k: range) -> Tile:
        behind, kind = causal().tile(q, k), self._either_way(q, k)
        if Tile.EMPTY in (behind, kind):
            return Tile.EMPTY
        return Tile.FULL if behind is kind is Tile.FULL else Tile.MIXED

    def _either_way(self, q: range, k: range) -> Tile:
        """Return the kind of the rectangle without the causal mask."""
        own = {q[0] // self.block, q[-1] // self.block}
        blocks = {k[0] // self.block, k[-1] // self.block}
        first = self.block - self.summary
        in_summary = len(blocks) == 1 and k[0] % self.block >= first
        if len(own | blocks) == 1 or in_summary:
            return Tile.FULL
        apart = k[-1] // self.block < min(own) or k[0] // self.block > max(own)
        before = len(blocks) == 1 and k[-1] % self.block < first
        return Tile.EMPTY if apart and before else Tile.MIXED

    @property
    def name(self) -> str:
        return f"fixed({self.block}, {self.summary})"


def fixed(block: int, summary: int) -> Mask:
    """Let each query attend to its block and the last ``summary`` keys of every earlier block.

    Args:
        block: l, the length of a block, at least 1.
        summary: c, the number of last keys of a block that stay allowed; 0 to ``block``.

    Raises:
        BadType, BadValue: if an argument is not an integer or out of range.

    Source: Child et al. 2019, section 4.3, A(1) and A(2) of the fixed pattern.

    Example:
        >>> print(fixed(2, 1).draw(5))
        ■ · · · ·
        ■ ■ · · ·
        · ■ ■ · ·
        · ■ ■ ■ ·
        · ■ · ■ ■
    """
    block = check_integer("fixed", "block", block, 1, Text("128 is usual"))
    summary = check_integer("fixed", "summary", summary, 0, Text("0 allows the own block only"))
    if summary > block:
        raise BadValue(
            "fixed: summary must be at most block, got summary {summary} and block {block}; "
            "summary = block gives causal()",
            summary=summary,
            block=block,
        )
    return Fixed(block, summary)


def strided(stride: int) -> Mask:
    """Let queries attend to the last ``stride`` keys, and every ``stride``-th key before them.

    This is ``causal() & (window(stride, 0) | every(stride))``: the union of the paper's heads.

    Args:
        stride: l, about the square root of the length; at least 1.

    Raises:
        BadType, BadValue: if ``stride`` is not an integer, is below 1 or above 2^31 - 1.

    Source: Child et al. 2019, section 4.3, A(1) and A(2) of the strided pattern.

    Example:
        >>> print(strided(2).draw(5))
        ■ · · · ·
        ■ ■ · · ·
        ■ ■ ■ · ·
        · ■ ■ ■ ·
        ■ · ■ ■ ■
    """
    stride = check_integer("strided", "stride", stride, 1, Text("sqrt(length) is usual"))
    return causal() & (window(stride, 0) | every(stride))
