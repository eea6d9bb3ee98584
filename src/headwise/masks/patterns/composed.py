"""Masks composed of masks: keys appended for every query, and one mask for each head."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks.arguments import Content
from headwise.masks.mask import Mask, Tile, add
from headwise.shapes import AttentionShape, Index, Truth, check_integer


@dataclass(frozen=True, repr=False)
class Appended(Mask):
    """The mask of `appended`."""

    inner: Mask
    count: int
    own: int | None = None  # the number of keys of the inner mask, once the mask is resolved

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        extra = k >= self._own()
        if not self._own():
            return extra | torch.ones_like(q, dtype=torch.bool)
        return extra | self.inner.rule(b, h, q, self._inside(k))

    def tile(self, q: range, k: range) -> Tile:
        if self.own is None:
            return Tile.MIXED
        if k[0] >= self.own:
            return Tile.FULL
        kind = self.inner.tile(q, range(k[0], min(k[-1] + 1, self.own)))
        return Tile.MIXED if kind is Tile.EMPTY and k[-1] >= self.own else kind

    def bias(self, b: Index, h: Index, q: Index, k: Index) -> Tensor | None:
        if not self._own():
            return None
        inner = self.inner.bias(b, h, q, self._inside(k))
        return None if inner is None else torch.where(k >= self._own(), 0.0, inner)

    @property
    def name(self) -> str:
        return f"appended({self.inner.name}, {self.count})"

    def resolve(self, shape: AttentionShape) -> Mask:
        own = shape.keys - self.count
        if own < 0:
            raise BadValue(
                "appended: expected at least the {count} appended keys, got {keys} keys "
                "in total; append them to k and v",
                count=self.count,
                keys=shape.keys,
            )
        return Appended(self.inner.resolve(replace(shape, keys=own)), self.count, own)

    def required_sizes(self) -> dict[str, int]:
        sizes = self.inner.required_sizes()
        return sizes | ({"Lk": sizes["Lk"] + self.count} if "Lk" in sizes else {})

    def bind(self, content: Content) -> Mask:
        own = self._own()
        real = None if content.real is None else content.real[:, :own]
        shape = replace(content.shape, keys=own)
        inner = self.inner.bind(Content(content.q, content.k[:, :, :own], shape, real))
        return Appended(inner, self.count, own)

    def _inside(self, k: Index) -> Index:
        return k.clamp(max=self._own() - 1)

    def _own(self) -> int:
        if self.own is None:
            raise RuntimeError("appended: resolve the mask for a call first")
        return self.own


def appended(mask: Mask, count: int) -> Mask:
    """Return a mask extended by ``count`` keys at the end, to which every query attends.

    A learned extra key (``add_bias_kv``) and an extra key of zeros (``add_zero_attn``) need this:
    they have no position, and no mask hides them.

    Raises:
        BadType, BadValue: if ``mask`` is not a mask, ``count`` is not an integer or negative, or,
            when called, if there are fewer keys.

    Example:
        >>> from headwise.masks import causal
        >>> shape = AttentionShape(1, 1, queries=3, keys=4, offset=0, device=torch.device("cpu"))
        >>> appended(causal(), 1).dense(shape)[0, 0].int().tolist()
        [[1, 0, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1]]
    """
    if not isinstance(mask, Mask):
        raise BadType(
            "appended: expected a mask, got {mask_type}; full() masks nothing",
            mask_type=type(mask).__name__,
        )
    count = check_integer("appended", "count", count, 0, Text("add_bias_kv appends 1"))
    return Appended(mask, count)


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
                "per_head: made for {num_masks} heads, called with {heads}; use one "
                "mask for each head",
                num_masks=len(self.masks),
                heads=shape.heads,
            )
        return super().resolve(shape)

    def required_sizes(self) -> dict[str, int]:
        return super().required_sizes() | {"H": len(self.masks)}


def per_head(masks: Sequence[Mask]) -> Mask:
    """Use the mask with index h for query head h.

    Args:
        masks: one mask for each query head.

    Raises:
        BadType, BadValue: if ``masks`` is not a sequence of masks, or, when called, not of length
            H.

    Example:
        >>> from headwise.masks import causal, full
        >>> per_head([causal(), full()])
        per_head([causal(), full()])
    """
    if not isinstance(masks, Iterable):
        raise BadType(
            "per_head: expected a sequence of masks, one for each head, got {masks!r}; "
            "if all heads share one mask, pass that mask itself",
            masks=masks,
        )
    heads = tuple(masks)
    for mask in heads:
        if not isinstance(mask, Mask):
            raise BadType(
                "per_head: expected masks, got {mask_type}", mask_type=type(mask).__name__
            )
    if not heads:
        raise BadValue("per_head: expected one mask for each head, got none")
    return PerHead(heads)
