"""What a mask is: a small immutable value that says which query may attend to which key."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks.arguments import Content
from headwise.shapes import Allowed, AttentionShape, Index, Truth, check_integer

DRAWN_DIM = 16  # D of the random q and k on which a content-dependent mask is drawn


class Tile(Enum):
    """The kind of a rectangle of queries and keys, over all batches and heads."""

    EMPTY = "empty"  # no pair may attend
    MIXED = "mixed"  # some may, or nothing is known
    FULL = "full"  # every pair may attend

    @classmethod
    def of(cls, allowed: Tensor, inside: bool = True) -> "Tile":
        """The kind of a rectangle from its booleans, which are all of it if ``inside``."""
        if not allowed.numel():
            return cls.EMPTY
        least, largest = allowed.view(torch.uint8).aminmax()  # much faster than `all` and `any`
        if not bool(largest):
            return cls.EMPTY
        return cls.FULL if inside and bool(least) else cls.MIXED


if TYPE_CHECKING:
    Masks = tuple["Mask", ...]
    Names = tuple[str, ...]
else:  # at run time jaxtyping would check a random element
    Masks = Names = tuple


class Mask(ABC):
    """A rule ``(b, h, q, k) -> bool``, True where query q of head h in batch b may attend to key k.

    Masks compose: ``a & b`` (both allow), ``a | b`` (either allows), ``~a`` (the opposite). A mask
    has no length: the same value serves every length, offset and batch. The rule is evaluated on
    integer tensors that broadcast against each other, so one definition serves the exact reference,
    every engine and the drawing.

    Example:
        >>> import headwise as hw
        >>> hw.causal() & hw.window(3, 0)
        causal() & window(3, 0)
    """

    @abstractmethod
    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        """Whether the query at position q may attend to key k; the arguments broadcast."""

    def tile(self, q: range, k: range) -> Tile:
        """The kind of the rectangle of query positions q and keys k, without evaluating the rule.

        Never `EMPTY` where a pair may attend and never `FULL` where one may not; `MIXED` is always
        valid. Both ranges have step 1 and are not empty.
        """
        return Tile.MIXED

    def untold_tiles(self) -> Text | None:
        """Why the kinds of the resolved mask's tiles cannot be told, or None."""
        return next(filter(None, (child.untold_tiles() for child in self.children())), None)

    @property
    @abstractmethod
    def name(self) -> str:
        """The expression that makes this mask."""

    def children(self) -> "Masks":
        """The masks in this mask's dataclass fields, in order; a pattern has none."""
        names = _field_names(self)
        if not names:  # at once, since every call asks
            return ()
        fields = (getattr(self, name) for name in names)
        return tuple(child for field in fields for child in _masks_in(field))

    def map(self, function: Callable[["Mask"], "Mask"]) -> "Mask":
        """This mask with ``function`` applied to each of its `children`."""
        changes: dict[str, object] = {}
        for name in _field_names(self):
            value, masks = getattr(self, name), list(_masks_in(getattr(self, name)))
            if masks:
                parts = [function(child) for child in masks]
                changes[name] = tuple(parts) if isinstance(value, tuple) else parts[0]
        return replace(self, **changes) if changes else self  # type: ignore[type-var]

    def walk(self) -> "Masks":
        """This mask, then every mask inside it, depth first.

        Example:
            >>> from headwise.masks import causal, full
            >>> (causal() | ~full()).walk()
            (causal() | ~full(), causal(), ~full(), full())
        """
        return (self, *(inner for child in self.children() for inner in child.walk()))

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors in the dataclass fields of this mask and of the masks inside it."""
        values = (getattr(mask, name) for mask in self.walk() for name in _field_names(mask))
        return tuple(value for value in values if isinstance(value, Tensor))

    def bias(self, b: Index, h: Index, q: Index, k: Index) -> Tensor | None:
        """What is added to the scaled scores before the softmax, or None for nothing."""
        return None

    def resolve(self, shape: AttentionShape) -> "Mask":
        """The mask for one call's shape; a required size that differs raises BadValue."""
        return self.map(lambda child: child.resolve(shape))

    def bind(self, content: Content) -> "Mask":
        """The resolved mask for the q and k of one call."""
        return self.map(lambda child: child.bind(content))

    def required_sizes(self) -> dict[str, int]:
        """The required sizes of B, H, Lq and Lk; 1 fits every size.

        Example:
            >>> from headwise.masks import causal, full, padding, per_head
            >>> (padding([3, 1]) & per_head([causal(), full(), full()])).required_sizes()
            {'B': 2, 'H': 3}
        """
        sizes: dict[str, int] = {}
        for child in self.children():
            for letter, size in child.required_sizes().items():
                sizes[letter] = max(size, sizes.get(letter, 0))
        return sizes

    def unpadded_keys(self, shape: AttentionShape) -> Tensor | None:
        """(B, Lk), False on padding; None where the mask has none."""
        return None

    def visible_keys(self, shape: AttentionShape) -> Tensor | None:
        """(B or 1, Lk), False on keys that the resolved mask is known to hide from every query."""
        if self.by_distance:
            return shape.visible_by_distance(self.rule)
        return self.unpadded_keys(shape)

    @property
    def content_dependent(self) -> bool:
        """Whether the rule depends on q and k, so that a call has to `bind` the mask."""
        return any(child.content_dependent for child in self.children())

    @property
    def biased(self) -> bool:
        """Whether the mask also adds a bias to the scores."""
        return any(child.biased for child in self.children())

    @property
    def by_distance(self) -> bool:
        """Whether the rule depends on q - k only: the same for all samples, heads and positions."""
        return False

    def tile_boundaries(self, stop: int, start: int = 0) -> frozenset[int]:
        """Positions after ``start`` and before ``stop`` where the pattern changes."""
        children = self.children()
        return frozenset[int]().union(*(mask.tile_boundaries(stop, start) for mask in children))

    def allowed_blocks(self) -> list[tuple[range, range]] | None:
        """Disjoint rectangles outside which no pair is allowed; None if many or unknown."""
        return None

    def restrict(self, q: range, k: range) -> "Mask":
        """A simpler mask with the same rule inside a rectangle; its bias may differ."""
        return self

    def dense(self, shape: AttentionShape) -> Allowed:
        """The rule written out as booleans, (B or 1, H or 1, Lq, Lk)."""
        b, h, q, k = shape.indices()
        allowed = self.resolve(shape).rule(b, h, q, k)
        batch, heads = (*(1,) * (4 - allowed.dim()), *allowed.shape)[:2]
        return allowed.expand(batch, heads, shape.queries, shape.keys)

    def shown(self, shape: AttentionShape) -> "Mask":
        """The mask resolved for a drawing; a content-dependent one is bound to random q and k.

        Query and key of one position are the same vector, as in the Reformer.
        """
        mask = self.resolve(shape)
        if not mask.content_dependent:
            return mask
        query, key = (index.flatten() for index in shape.indices()[2:])
        first = min(0, shape.offset)
        last = max(shape.keys, shape.queries + shape.offset)
        generator = torch.Generator().manual_seed(0)
        size = (shape.batch, shape.heads, last - first, DRAWN_DIM)
        rows = torch.randn(size, generator=generator).to(shape.device)
        return mask.bind(Content(rows[:, :, query - first], rows[:, :, key - first], shape))

    def draw(self, queries: int, keys: int | None = None) -> str:
        """The mask of the first batch and head as text: ``■`` may attend, ``·`` may not."""
        keys = queries if keys is None else keys
        for size, count in (("queries", queries), ("keys", keys)):
            check_integer("draw", size, count, 0, Text("draw(5) is 5 x 5"))
        shape = AttentionShape(1, 1, queries, keys, keys - queries, torch.device("cpu"))
        rows = self.shown(shape).dense(shape)[0, 0].tolist()
        return "\n".join(" ".join("■" if seen else "·" for seen in row) for row in rows)

    def __and__(self, other: object) -> "Mask":
        return And(self, _mask(other))

    def __or__(self, other: object) -> "Mask":
        return Or(_pure(self, "|"), _pure(_mask(other), "|"))

    def __rand__(self, other: object) -> "Mask":
        return _mask(other) & self

    def __ror__(self, other: object) -> "Mask":
        return _mask(other) | self

    def __invert__(self) -> "Mask":
        return Not(_pure(self, "~"))

    def __bool__(self) -> bool:
        raise BadType(
            "mask: {name} is neither true nor false; compose masks with & | ~, not with "
            "and, or, not",
            name=self.name,
        )

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, repr=False)
class And(Mask):
    """Both masks allow; their biases are added."""

    left: Mask
    right: Mask

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return self.left.rule(b, h, q, k) & self.right.rule(b, h, q, k)

    def tile(self, q: range, k: range) -> Tile:
        kinds = {self.left.tile(q, k), self.right.tile(q, k)}
        if Tile.EMPTY in kinds:
            return Tile.EMPTY
        return Tile.FULL if kinds == {Tile.FULL} else Tile.MIXED

    def allowed_blocks(self) -> list[tuple[range, range]] | None:
        blocks = self.left.allowed_blocks()
        return self.right.allowed_blocks() if blocks is None else blocks

    def restrict(self, q: range, k: range) -> Mask:
        return _restricted(self, Tile.FULL, q, k)

    @property
    def name(self) -> str:
        return f"{_grouped(self.left, Or)} & {_grouped(self.right, And, Or)}"

    def bias(self, b: Index, h: Index, q: Index, k: Index) -> Tensor | None:
        return add(self.left.bias(b, h, q, k), self.right.bias(b, h, q, k))

    @property
    def by_distance(self) -> bool:
        return self.left.by_distance and self.right.by_distance

    def bind(self, content: Content) -> Mask:
        shape = content.shape
        real = both(content.real, self.visible_keys(shape))
        real = None if real is None else real.expand(shape.batch, shape.keys)
        return super().bind(replace(content, real=real))

    def unpadded_keys(self, shape: AttentionShape) -> Tensor | None:
        return both(self.left.unpadded_keys(shape), self.right.unpadded_keys(shape))

    def visible_keys(self, shape: AttentionShape) -> Tensor | None:
        if self.by_distance:
            return shape.visible_by_distance(self.rule)
        return both(self.left.visible_keys(shape), self.right.visible_keys(shape))


@dataclass(frozen=True, repr=False)
class Or(Mask):
    """Either mask allows."""

    left: Mask
    right: Mask

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return self.left.rule(b, h, q, k) | self.right.rule(b, h, q, k)

    def tile(self, q: range, k: range) -> Tile:
        kinds = {self.left.tile(q, k), self.right.tile(q, k)}
        if Tile.FULL in kinds:
            return Tile.FULL
        return Tile.EMPTY if kinds == {Tile.EMPTY} else Tile.MIXED

    def restrict(self, q: range, k: range) -> Mask:
        return _restricted(self, Tile.EMPTY, q, k)

    @property
    def name(self) -> str:
        return f"{_grouped(self.left, And)} | {_grouped(self.right, And, Or)}"

    @property
    def by_distance(self) -> bool:
        return self.left.by_distance and self.right.by_distance


@dataclass(frozen=True, repr=False)
class Not(Mask):
    """The opposite of a mask. ``~~m`` is m itself."""

    inner: Mask

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return ~self.inner.rule(b, h, q, k)

    def tile(self, q: range, k: range) -> Tile:
        opposite = {Tile.EMPTY: Tile.FULL, Tile.FULL: Tile.EMPTY, Tile.MIXED: Tile.MIXED}
        return opposite[self.inner.tile(q, k)]

    def restrict(self, q: range, k: range) -> Mask:
        return Not(self.inner.restrict(q, k))

    @property
    def name(self) -> str:
        return f"~{_grouped(self.inner, And, Or)}"

    @property
    def by_distance(self) -> bool:
        return self.inner.by_distance

    def __invert__(self) -> Mask:
        return self.inner


def add(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The sum of two biases, each of which may be None for 0."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def multiples(step: int, start: int, stop: int) -> frozenset[int]:
    """The multiples of ``step`` after ``start`` and before ``stop``."""
    return frozenset(range((start // step + 1) * step, stop, step))


def zero_index(index: Index) -> Index:
    """The index 0 with the axes of ``index``: without axes torch.compile would read its value."""
    return index.new_zeros((1,) * index.dim())


def _masks_in(value: object) -> "Masks":
    """The masks in a dataclass field: itself, or those of a tuple."""
    values = value if isinstance(value, tuple) else (value,)
    return tuple(part for part in values if isinstance(part, Mask))


def _field_names(mask: Mask) -> "Names":
    return tuple(getattr(type(mask), "__dataclass_fields__", ()))


def both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The keys that neither mask hides."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _restricted(mask: "And | Or", neutral: Tile, q: range, k: range) -> Mask:
    """One side alone where the other's tile is the neutral kind of the operator."""
    left, right = mask.left.restrict(q, k), mask.right.restrict(q, k)
    if left.tile(q, k) is neutral:
        return right
    return left if right.tile(q, k) is neutral else type(mask)(left, right)


def _grouped(mask: Mask, *loose: type[Mask]) -> str:
    return f"({mask.name})" if isinstance(mask, loose) else mask.name


def _mask(value: object) -> Mask:
    if isinstance(value, Mask):
        return value
    raise BadType(
        "mask: only masks compose with & | ~, got {value_type}; wrap a tensor with "
        "from_tensor(...)",
        value_type=type(value).__name__,
    )


def _pure(mask: Mask, operator: str) -> Mask:
    if not mask.biased:
        return mask
    raise BadValue(
        "mask: {mask_name} adds a float bias to the scores, which has no meaning under "
        "'{operator}'; compose the boolean masks first and add the bias with &",
        mask_name=mask.name,
        operator=operator,
    )
