"""Another mask for each head."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.masks.mask import Mask, Tile, add
from headwise.shapes import AttentionShape, Index, Truth


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

    def bias(self, b: Index, h: Index, q: Index, k: Index) -> Tensor | None:
        total: Tensor | None = None
        for head, mask in enumerate(self.masks):
            part = mask.bias(b, h, q, k)
            total = add(total, None if part is None else part.masked_fill(h != head, 0.0))
        return total

    def resolve(self, shape: AttentionShape) -> Mask:
        if len(self.masks) != shape.heads:
            raise BadValue(
                "per_head: made for {num_masks} heads, called with {heads}; give one "
                "mask for each head",
                num_masks=len(self.masks),
                heads=shape.heads,
            )
        return super().resolve(shape)

    def required_sizes(self) -> dict[str, int]:
        return super().required_sizes() | {"H": len(self.masks)}


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
            "per_head: expected a sequence of masks, one for each head, got {masks!r}; "
            "one mask for all heads needs no per_head",
            masks=masks,
        )
    given = tuple(masks)
    for mask in given:
        if not isinstance(mask, Mask):
            raise BadType(
                "per_head: expected masks, got {mask_type}", mask_type=type(mask).__name__
            )
    if not given:
        raise BadValue("per_head: expected one mask for each head, got none")
    return PerHead(given)
