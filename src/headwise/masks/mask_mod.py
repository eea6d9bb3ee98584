"""A mask from a user's function, as accepted by `torch.nn.attention.flex_attention`.

Interval arithmetic finds empty and full tiles: the function is called with an `IndexRange` in place
of each index and returns a `PairTruth`. This works for arithmetic, comparisons, ``& | ~`` and
lookups in tensors. With any other function the mask is correct too, but every pair is computed.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from headwise.errors import BadType
from headwise.lang import Text
from headwise.masks.mask import Mask, Tile
from headwise.shapes import AttentionShape, Index, Truth, check_boolean, describe

MaskMod = Callable[[Any, Any, Any, Any], Any]
"""``mask_mod(b, h, q_idx, kv_idx)``, True where the query may attend to the key."""

UNTOLD = (TypeError, ValueError, AttributeError, IndexError, NotImplementedError, RuntimeError)
"""The errors that show that a function cannot compute with ranges."""


SAMPLES = 64  # the maximum batch size for which tiles are classified sample by sample


@dataclass(frozen=True, repr=False)
class FromMaskMod(Mask):
    """The mask of `from_mask_mod`."""

    mask_mod: MaskMod
    positions: bool = False
    shape: AttentionShape | None = None  # the shape of the call, or None before `resolve`

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        allowed = self.mask_mod(b, h, q - self._first, k)
        if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
            raise BadType(
                "mask_mod: expected the function to return a boolean tensor, got {got}; use for "
                "example lambda b, h, q_idx, kv_idx: q_idx >= kv_idx",
                got=describe(allowed),
            )
        return allowed

    def tile(self, q: range, k: range) -> Tile:
        verdict = self._verdict(q, k)
        if isinstance(verdict, str):
            return Tile.MIXED
        if not verdict.may_hold:
            return Tile.EMPTY
        return Tile.MIXED if verdict.may_fail else Tile.FULL

    def untold_tiles(self) -> Text | None:
        if self.shape is None or not self.shape.queries or not self.shape.keys:
            return None
        verdict: PairTruth | str = ""
        first, last = self.shape.offset, self.shape.offset + self.shape.queries - 1
        for query, key in ((first, 0), (last, self.shape.keys - 1)):
            verdict = self._verdict(range(query, query + 1), range(key, key + 1))
            if isinstance(verdict, PairTruth):
                return None
        return Text(
            "every pair is computed, since {name} cannot compute with ranges ({reason})",
            name=self.name,
            reason=verdict,
        )

    @property
    def name(self) -> str:
        name = getattr(self.mask_mod, "__name__", type(self.mask_mod).__name__)
        return f"from_mask_mod({name}{', positions=True' if self.positions else ''})"

    def resolve(self, shape: AttentionShape) -> Mask:
        return replace(self, shape=shape)

    @property
    def _first(self) -> int:
        """The position of the query that has index 0 in the function."""
        return 0 if self.shape is None or self.positions else self.shape.offset

    def _verdict(self, q: range, k: range) -> "PairTruth | str":
        """Return the possible values of the function for these positions, or an error reason."""
        shape = self.shape
        if shape is None or not shape.batch or not shape.heads:
            return "the mask is not resolved for a call"
        first, last = q[0] - self._first, q[-1] - self._first
        ranges = IndexRange(0, shape.heads - 1), IndexRange(first, last), IndexRange(k[0], k[-1])
        try:
            verdict = PairTruth.of(self.mask_mod(IndexRange(0, shape.batch - 1), *ranges))
            if not (verdict.may_hold and verdict.may_fail) or not 1 < shape.batch <= SAMPLES:
                return verdict
            samples = (IndexRange(b, b) for b in range(shape.batch))
            by_sample = [PairTruth.of(self.mask_mod(b, *ranges)) for b in samples]
        except UNTOLD as error:
            return (str(error) or type(error).__name__).splitlines()[0]
        return PairTruth(any(x.may_hold for x in by_sample), any(x.may_fail for x in by_sample))


def from_mask_mod(mask_mod: MaskMod, *, positions: bool = False) -> Mask:
    """Create a mask from a function ``(b, h, q_idx, kv_idx) -> bool``, as in `flex_attention`.

    The function receives integer tensors that broadcast. ``q_idx`` counts the queries of a call
    from 0, as in `flex_attention`. If the numbers of queries and keys differ, this index is not the
    position that other masks use; ``positions=True`` passes the position instead.

    Empty tiles are skipped if the function consists of arithmetic, comparisons, ``& | ~`` and
    lookups in tensors, as in ``document[b, q_idx] == document[b, kv_idx]``. Any other function is
    evaluated for every pair, and `headwise.plan` reports this.

    Args:
        mask_mod: the function, True where the query may attend to the key.
        positions: whether ``q_idx`` is the position of the query among the keys, as a cache needs.

    Raises:
        BadType: if mask_mod is not a function, or does not return a boolean tensor when called.

    Source: Dong et al. 2024 (FlexAttention), section 3.

    Example:
        >>> def local(b, h, q_idx, kv_idx):
        ...     return (q_idx >= kv_idx) & (q_idx - kv_idx <= 1)
        >>> print(from_mask_mod(local).draw(3))
        ■ · ·
        ■ ■ ·
        · ■ ■
    """
    if not callable(mask_mod) or isinstance(mask_mod, Mask | type):
        raise BadType(
            "from_mask_mod: expected a function (b, h, q_idx, kv_idx) -> bool, got {got}; use for "
            "example lambda b, h, q_idx, kv_idx: q_idx >= kv_idx",
            got=describe(mask_mod),
        )
    check_boolean("from_mask_mod", "positions", positions, Text("False counts queries from 0"))
    return FromMaskMod(mask_mod, positions)


class _Operand:
    """Base class of values that replace tensors in operators and torch functions."""

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "").strip("_")
        if name == "getitem" and not kwargs:
            return _lookup(*args)
        if name not in OPERATIONS or kwargs:
            raise TypeError(f"torch.{name} of a range")
        return OPERATIONS[name](*args)

    def __bool__(self) -> NoReturn:
        raise TypeError("a branch on a range")

    def new_ones(
        self, size: object = (), dtype: object = None, device: object = None
    ) -> "PairTruth":
        """Return True; `torch.nn.attention.flex_attention.and_masks` starts with this call."""
        return PairTruth(True, False)

    def new_zeros(
        self, size: object = (), dtype: object = None, device: object = None
    ) -> "PairTruth":
        """Return False; ``or_masks`` starts with this call."""
        return PairTruth(False, True)


@dataclass(frozen=True, eq=False)
class PairTruth(_Operand):
    """A condition on all pairs of two ranges: whether it can hold, and whether it can fail."""

    may_hold: bool
    may_fail: bool

    @classmethod
    def of(cls, value: object) -> "PairTruth":
        if isinstance(value, PairTruth):
            return value
        if isinstance(value, bool):
            return cls(value, not value)
        if isinstance(value, Tensor) and value.dtype == torch.bool and value.numel():
            return cls(bool(value.any()), not bool(value.all()))
        raise TypeError(f"{describe(value)} in place of a truth")

    def __and__(self, other: object) -> "PairTruth":
        right = PairTruth.of(other)
        return PairTruth(self.may_hold and right.may_hold, self.may_fail or right.may_fail)

    def __or__(self, other: object) -> "PairTruth":
        right = PairTruth.of(other)
        return PairTruth(self.may_hold or right.may_hold, self.may_fail and right.may_fail)

    def __invert__(self) -> "PairTruth":
        return PairTruth(self.may_fail, self.may_hold)

    __rand__, __ror__ = __and__, __or__


@dataclass(frozen=True, eq=False)
class IndexRange(_Operand):
    """An unknown number between two inclusive bounds.

    Example:
        >>> IndexRange(0, 5) // 2 + 1
        IndexRange(low=1, high=3)
        >>> (IndexRange(4, 5) - IndexRange(0, 3)) > 0
        PairTruth(may_hold=True, may_fail=False)
    """

    low: float
    high: float

    @classmethod
    def of(cls, value: object) -> "IndexRange":
        if isinstance(value, IndexRange):
            return value
        if isinstance(value, Tensor) and value.numel() == 1 and value.dtype != torch.bool:
            value = value.item()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return cls(value, value)
        raise TypeError(f"{describe(value)} beside a range")

    def __add__(self, other: object) -> "IndexRange":
        right = IndexRange.of(other)
        return IndexRange(self.low + right.low, self.high + right.high)

    def __neg__(self) -> "IndexRange":
        return IndexRange(-self.high, -self.low)

    def __sub__(self, other: object) -> "IndexRange":
        return self + -IndexRange.of(other)

    def __rsub__(self, other: object) -> "IndexRange":
        return IndexRange.of(other) - self

    def __mul__(self, other: object) -> "IndexRange":
        right = IndexRange.of(other)
        products = [x * y for x in (self.low, self.high) for y in (right.low, right.high)]
        return IndexRange(min(products), max(products))

    def __floordiv__(self, other: object) -> "IndexRange":
        step = _positive(other)
        return IndexRange(self.low // step, self.high // step)

    def __mod__(self, other: object) -> "IndexRange":
        step = _positive(other)
        if self.low // step != self.high // step:
            return IndexRange(0, step - 1 if isinstance(step, int) else step)
        return IndexRange(self.low % step, self.high % step)

    def __abs__(self) -> "IndexRange":
        if self.low >= 0:
            return self
        return -self if self.high <= 0 else IndexRange(0, max(-self.low, self.high))

    def abs(self) -> "IndexRange":
        return abs(self)

    def clamp(self, min: object = None, max: object = None) -> "IndexRange":  # noqa: A002
        """Clamp the range, as `torch.clamp` does."""
        low = self if min is None else maximum(self, min)
        return low if max is None else minimum(low, max)

    def __lt__(self, other: object) -> PairTruth:
        right = IndexRange.of(other)
        return PairTruth(self.low < right.high, self.high >= right.low)

    def __le__(self, other: object) -> PairTruth:
        right = IndexRange.of(other)
        return PairTruth(self.low <= right.high, self.high > right.low)

    def __gt__(self, other: object) -> PairTruth:
        return ~(self <= other)

    def __ge__(self, other: object) -> PairTruth:
        return ~(self < other)

    def __eq__(self, other: object) -> PairTruth:  # type: ignore[override]
        right = IndexRange.of(other)
        same = self.low == self.high == right.low == right.high
        return PairTruth(self.low <= right.high and right.low <= self.high, not same)

    def __ne__(self, other: object) -> PairTruth:  # type: ignore[override]
        return ~(self == other)

    __radd__, __rmul__ = __add__, __mul__


def _positive(value: object) -> float:
    """Check that a divisor is a single positive number, and return it."""
    step = IndexRange.of(value)
    if step.low != step.high or step.low <= 0:
        raise ValueError("a division by a range or by a number that is not positive")
    return step.low


def minimum(one: object, other: object) -> IndexRange:
    """Return the range of the smaller of two numbers."""
    left, right = IndexRange.of(one), IndexRange.of(other)
    return IndexRange(min(left.low, right.low), min(left.high, right.high))


def maximum(one: object, other: object) -> IndexRange:
    """Return the range of the greater of two numbers."""
    return -minimum(-IndexRange.of(one), -IndexRange.of(other))


def where(condition: object, one: object, other: object) -> IndexRange:
    """Return the range of the number that `torch.where` selects."""
    verdict, left, right = PairTruth.of(condition), IndexRange.of(one), IndexRange.of(other)
    chosen = [x for x, may in ((left, verdict.may_hold), (right, verdict.may_fail)) if may]
    return IndexRange(min(x.low for x in chosen), max(x.high for x in chosen))


def _lookup(table: Tensor, index: object) -> _Operand:
    """Return the range of a tensor's elements at indices within some ranges."""
    indices = index if isinstance(index, tuple) else (index,)
    if len(indices) != table.dim():
        raise TypeError("a lookup by fewer indices than the tensor has axes")
    slices = []
    for size, number in zip(table.shape, map(IndexRange.of, indices), strict=True):
        low, high = int(number.low), int(number.high)
        if (low, high) != (number.low, number.high) or low < 0 or high >= size:
            raise IndexError(f"a lookup at {number.low} to {number.high} of {size}")
        slices.append(slice(low, high + 1))
    part = table[tuple(slices)]
    if part.dtype == torch.bool:
        return PairTruth.of(part)
    least, greatest = part.aminmax()
    return IndexRange(least.item(), greatest.item())


def _flipped(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda one, other: function(other, one)


def _on(
    kind: type[IndexRange] | type[PairTruth], function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return an operator that converts its first argument to an operand."""
    return lambda first, *others: function(kind.of(first), *others)


_NUMERIC: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "floor_divide": operator.floordiv,
    "mod": operator.mod,
    "remainder": operator.mod,
    "neg": operator.neg,
    "abs": abs,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
_LOGICAL: dict[str, Callable[..., Any]] = {
    "and": operator.and_,
    "bitwise_and": operator.and_,
    "logical_and": operator.and_,
    "or": operator.or_,
    "bitwise_or": operator.or_,
    "logical_or": operator.or_,
    "invert": operator.invert,
    "bitwise_not": operator.invert,
    "logical_not": operator.invert,
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: _on(IndexRange, function) for name, function in _NUMERIC.items()},
    **{name: _on(PairTruth, function) for name, function in _LOGICAL.items()},
    "rsub": _flipped(_on(IndexRange, operator.sub)),
    "minimum": minimum,
    "maximum": maximum,
    "clamp": _on(IndexRange, IndexRange.clamp),
    "where": where,
}
"""The implementations of torch functions for operands, by function name."""
