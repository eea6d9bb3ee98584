"""Another mask for each head."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.masks.base import Content, Mask, Tile
from headwise.shapes import Frame, Index, Truth


@dataclass(frozen=True, repr=False)
class PerHead(Mask):
    """The mask of `per_head`."""

    masks: tuple[Mask, ...]

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        seen = self.masks[0].rule(b, h, q, k) & (h == 0)
        for head, mask in enumerate(self.masks[1:], 1):
            seen = seen | (mask.rule(b, h, q, k) & (h == head))
        return seen

    def tile(self, q: range, k: range) -> Tile:
        kinds = {mask.tile(q, k) for mask in self.masks}
        return kinds.pop() if len(kinds) == 1 else Tile.MIXED

    @property
    def name(self) -> str:
        return f"per_head([{', '.join(mask.name for mask in self.masks)}])"

    @property
    def biased(self) -> bool:
        return any(mask.biased for mask in self.masks)

    def bias(self, b: Index, h: Index, q: Index, k: Index) -> Tensor | None:
        total: Tensor | None = None
        for head, mask in enumerate(self.masks):
            part = mask.bias(b, h, q, k)
            if part is not None:
                part = part.masked_fill(h != head, 0.0)
                total = part if total is None else total + part
        return total

    def resolve(self, frame: Frame) -> Mask:
        if len(self.masks) != frame.heads:
            raise BadValue(
                f"per_head: made for {len(self.masks)} heads, called with {frame.heads}; "
                "give one mask for each head",
                f"per_head：按 {len(self.masks)} 个头构造，调用时有 {frame.heads} 个；"
                "请为每个头给出一个掩码",
            )
        return PerHead(tuple(mask.resolve(frame) for mask in self.masks))

    @property
    def looks(self) -> bool:
        return any(mask.looks for mask in self.masks)

    def look(self, content: Content) -> Mask:
        return PerHead(tuple(mask.look(content) for mask in self.masks))


def per_head(masks: Sequence[Mask]) -> Mask:
    """Head h uses the h-th mask.

    Args:
        masks: one mask for each query head.

    Raises:
        BadType: if it is no sequence, or one of them no mask.
        BadValue: if there is none, or, when called, if their number is not H.

    Example:
        >>> from headwise.masks import causal, full
        >>> per_head([causal(), full()])
        per_head([causal(), full()])
    """
    if not isinstance(masks, Iterable):
        raise BadType(
            f"per_head: expected a sequence of masks, one for each head, got {masks!r}; "
            "one mask for all heads needs no per_head",
            f"per_head：应为掩码的序列，每个头一个，收到 {masks!r}；"
            "所有头共用一个掩码时不需要 per_head",
        )
    given = tuple(masks)
    for mask in given:
        if not isinstance(mask, Mask):
            raise BadType(
                f"per_head: expected masks, got {type(mask).__name__}",
                f"per_head：应为掩码，收到 {type(mask).__name__}",
            )
    if not given:
        raise BadValue(
            "per_head: expected one mask for each head, got none",
            "per_head：应为每个头给出一个掩码，一个也没有收到",
        )
    return PerHead(given)
