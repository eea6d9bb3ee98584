"""The sizes of attention, the letters that name them, and checks of single arguments.

    B    batch
    H    query heads
    G    key/value heads; G divides H, and query head h uses key/value head h // (H / G)
    Lq   number of queries          Lk   number of keys
    E    embed_dim (the paper's d_model)
    D    head dim of queries and keys (the paper's d_k)
    Dv   head dim of values (the paper's d_v)

`attend` takes q (B, H, Lq, D), k (B, G, Lk, D), v (B, G, Lk, Dv). Annotations use the same letters
in lower case: ``Float[Tensor, "b h lq d"]``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.lang import Text

LARGEST = 2**31 - 1
"""The largest integer argument: no sequence is longer, and sums of a few fit in int64."""

Index = Int[Tensor, "..."]
"""Batch, head, query or key indices, whose shapes broadcast against each other."""

Truth = Bool[Tensor, "..."]  # the value of a mask's rule: True means may attend

Allowed = Bool[Tensor, "#b #h lq lk"]
Queries = Float[Tensor, "b h lq d"]
Keys = Float[Tensor, "b g lk d"]
Values = Float[Tensor, "b g lk dv"]
Sinks = Float[Tensor, "h"]


@dataclass(frozen=True)
class AttentionShape:
    """The sizes of one attention, for which a mask is evaluated.

    For a mask, query number i has position ``i + offset``. The default offset Lk - Lq aligns the
    last query with the last key.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    offset: int
    device: torch.device

    def indices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return b (B,1,1,1), h (1,H,1,1), query positions (1,1,Lq,1) and keys (1,1,1,Lk)."""

        def count(n: int, axis: int) -> Tensor:
            shape = [1, 1, 1, 1]
            shape[axis] = n
            return torch.arange(n, device=self.device).view(shape)

        positions = count(self.queries, 2) + self.offset
        return count(self.batch, 0), count(self.heads, 1), positions, count(self.keys, 3)

    def visible_by_distance(self, rule: Callable[[Index, Index, Index, Index], Truth]) -> Tensor:
        """Return (1, Lk), False on keys that a rule of q - k hides from every query.

        Example:
            >>> from headwise.masks import causal
            >>> cpu = torch.device("cpu")
            >>> shape = AttentionShape(1, 1, queries=2, keys=5, offset=1, device=cpu)
            >>> shape.visible_by_distance(causal().rule).tolist()
            [[True, True, True, False, False]]
        """
        if not self.queries or not self.keys:
            return torch.zeros(1, self.keys, dtype=torch.bool, device=self.device)
        before = self.allowed_before(rule)
        return (before[self.queries :] > before[: self.keys]).flip(0)[None]

    def allowed_before(self, rule: Callable[[Index, Index, Index, Index], Truth]) -> Tensor:
        """Return (Lq + Lk,): how many of the n least distances q - k the rule allows, per n."""
        first, stop = self.offset - self.keys + 1, self.offset + self.queries
        distance = torch.arange(first, stop, device=self.device)
        zero = torch.zeros((), dtype=torch.long, device=self.device)
        allowed = rule(zero, zero, distance, zero).expand(distance.shape)
        return torch.nn.functional.pad(allowed.long().cumsum(0), (1, 0))


def broadcasts(size: int, to: int) -> bool:
    """Return whether an axis of a size broadcasts to another, also for symbolic sizes."""
    return size == 1 or size == to  # ``size in (1, to)`` sets no torch.compile guard


def check_integer(
    owner: str, argument: str | Text, value: object, least: int, way_out: Text | None = None
) -> int:
    """Validate an integer argument of ``owner``, from ``least`` to `LARGEST`, and return it.

    NumPy's integers are accepted too. ``way_out`` is a hint at the end of the message.
    """
    hint = Text("; {way_out}", way_out=way_out) if way_out else Text("")
    if not isinstance(value, int) and isinstance(value, Integral):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadType(
            "{owner}: {argument} must be an integer, got {value!r}{hint}",
            owner=owner,
            argument=argument,
            value=value,
            hint=hint,
        )
    if value < least:
        raise BadValue(
            "{owner}: {argument} must be >= {least}, got {value}{hint}",
            owner=owner,
            argument=argument,
            least=least,
            value=format_value(value),
            hint=hint,
        )
    if value > LARGEST:
        raise BadValue(
            "{owner}: {argument} must be <= {most}, got {value}; this is the largest integer "
            "that headwise accepts",
            owner=owner,
            argument=argument,
            most=LARGEST,
            value=format_value(value),
        )
    return value


def check_boolean(owner: str, argument: str, value: object, way_out: Text) -> None:
    """Check that an argument is True or False."""
    if not isinstance(value, bool):
        raise BadType(
            "{owner}: {argument} must be True or False, got {value!r}; {way_out}",
            owner=owner,
            argument=argument,
            value=value,
            way_out=way_out,
        )


def format_value(value: object) -> str:
    """Return a value for a message; Python does not print integers of thousands of digits.

    Example:
        >>> format_value(2**31), format_value(-(10**5000)), format_value("a")
        ('2147483648', '-2**16609.6', "'a'")
    """
    if not isinstance(value, int) or value.bit_length() <= 128:
        return repr(value)
    return f"{'-' if value < 0 else ''}2**{math.log2(abs(value)):.1f}"


def describe(value: object) -> str:
    """Return the dtype and shape of a tensor, or the type of another value, for a message."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return type(value).__name__


def check_dense(argument: str, tensor: object) -> None:
    """Check that an argument is a tensor that is neither sparse nor nested."""
    if not isinstance(tensor, Tensor):
        raise BadType(
            "{argument}: expected a tensor, got {got}", argument=argument, got=describe(tensor)
        )
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else str(tensor.layout)
        way = "to_padded_tensor(0.0) and padding(lengths)" if tensor.is_nested else "to_dense()"
        raise BadType(
            "{argument}: expected a dense tensor, got {kind}; use {way}",
            argument=argument,
            kind=kind,
            way=way,
        )
