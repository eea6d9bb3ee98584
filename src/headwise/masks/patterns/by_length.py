"""Masks defined by lengths: padding, a bidirectional prefix, and packed documents."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks.arguments import INTEGERS, check_integers, needs_operator
from headwise.masks.mask import Mask, Tile, zero_index
from headwise.masks.patterns.by_distance import causal
from headwise.shapes import (
    AttentionShape,
    Index,
    Truth,
    broadcasts,
    check_dense,
    check_integer,
    describe,
)


@dataclass(frozen=True, repr=False, eq=False)
class Padding(Mask):
    """The mask of `padding`."""

    real: Tensor  # lengths (B,), or booleans (B, Lk) that are True on real keys
    prefix: bool = False  # whether `prefix` created the mask, for messages

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        real = self.real.to(k.device)
        return real[b, k] if real.dtype == torch.bool else k < real[b]

    def tile(self, q: range, k: range) -> Tile:
        if self.real.dtype != torch.bool:
            shortest, longest = self._extremes
            if k[-1] < shortest:
                return Tile.FULL
            return Tile.EMPTY if k[0] >= longest else Tile.MIXED
        return Tile.of(self.real[:, k[0] : k[-1] + 1])

    @property
    def name(self) -> str:
        if self.real.dtype == torch.bool:
            return f"padding(<bool {tuple(self.real.shape)}>)"
        return f"padding({self.real.tolist()})"

    def required_sizes(self) -> dict[str, int]:
        return dict(zip(("B", "Lk"), self.real.shape, strict=False))

    def resolve(self, shape: AttentionShape) -> Mask:
        batch, maker = self.real.shape[0], "prefix" if self.prefix else "padding"
        if not broadcasts(batch, shape.batch):
            raise BadValue(
                "{maker}: made for a batch of {batch}, called with a batch of {got}; "
                "use one length, or one row, for each sample",
                maker=maker,
                batch=batch,
                got=shape.batch,
            )
        if self.real.dtype == torch.bool and self.real.shape[1] != shape.keys:
            raise BadValue(
                "{maker}: made for {real_shape_1} keys, called with {keys}; use shape (B, Lk)",
                maker=maker,
                real_shape_1=self.real.shape[1],
                keys=shape.keys,
            )
        if batch == shape.batch:
            return self
        return replace(self, real=self.real.expand(shape.batch, *self.real.shape[1:]).contiguous())

    def unpadded_keys(self, shape: AttentionShape) -> Tensor:
        b, h, q, k = (index.flatten() for index in shape.indices())
        return self.rule(b[:, None], h, q, k)

    @cached_property
    def _extremes(self) -> tuple[int, int]:
        lengths = self.real.tolist()
        return min(lengths, default=0), max(lengths, default=0)


def padding(real: Sequence[int] | Tensor) -> Mask:
    """Mask the padded keys; they never affect the output or a gradient.

    Args:
        real: the number of real keys of each sample, after which all keys are padding; or a boolean
            tensor (B, Lk), True on real keys. (PyTorch's ``key_padding_mask`` is the opposite: pass
            ``~key_padding_mask``.)

    Raises:
        BadType, BadValue: if ``real`` is neither, if a length is negative or above 2^31 - 1, or,
            when called, if B or Lk do not fit.

    Example:
        >>> print(padding([2]).draw(3))
        ■ ■ ·
        ■ ■ ·
        ■ ■ ·
    """
    zero = Text("0 masks every key of that sample")
    return Padding(_real_or_lengths("padding", real, zero))


def _real_or_lengths(mask: str, real: Sequence[int] | Tensor, zero: Text) -> Tensor:
    """Validate lengths (B,) or booleans (B, Lk); ``zero`` explains a length of 0."""
    if not isinstance(real, Tensor):
        return torch.tensor(check_integers(mask, Text("length"), real, zero), dtype=torch.int64)
    check_dense(mask, real)
    if real.dtype == torch.bool and real.dim() == 2:
        return real
    if real.dtype not in INTEGERS or real.dim() != 1:
        raise BadType(
            "{mask}: expected lengths (B,) as integers or a boolean tensor (B, Lk) that "
            "is True on real keys, got {got}; convert a tokenizer's mask, which is 1 on real keys, "
            "with mask.bool()",
            mask=mask,
            got=describe(real),
        )
    if not needs_operator() and not torch.compiler.is_compiling() and bool((real < 0).any()):
        least = real.min().item()
        raise BadValue(
            "{mask}: a length must be >= 0, got {least}; {zero}", mask=mask, least=least, zero=zero
        )
    return real.long()


def prefix(lengths: int | Sequence[int] | Tensor) -> Mask:
    """Let queries attend causally, and every query attend to the whole prefix.

    This is ``causal() | padding(lengths)``.

    Args:
        lengths: the length of the prefix: one number for all samples, or one for each sample.

    Raises:
        BadType, BadValue: if a length is not an integer, is negative or above 2^31 - 1, or, when
            called, B does not fit.

    Source: Raffel et al. 2020 (T5), section 3.2.1, figure 4, right.

    Example:
        >>> print(prefix(2).draw(3))
        ■ ■ ·
        ■ ■ ·
        ■ ■ ■
    """
    per_sample: Any = [lengths] if isinstance(lengths, Integral) else lengths
    real = _real_or_lengths("prefix", per_sample, Text("0 is causal()"))
    return causal() | Padding(real, prefix=True)


@dataclass(frozen=True, repr=False, eq=False)
class Documents(Mask):
    """The mask of `documents`."""

    ids: Tensor  # (B or 1, Lk), the document of each position
    summed: bool = False  # whether it was given as lengths, for messages

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        ids = self.ids.to(k.device)
        if not ids.shape[1]:
            return torch.zeros_like(q + k, dtype=torch.bool)
        row = b if len(ids) > 1 else zero_index(b)
        inside = (q >= 0) & (q < ids.shape[1])
        return inside & (ids[row, q.clamp(0, max(ids.shape[1] - 1, 0))] == ids[row, k])

    def tile(self, q: range, k: range) -> Tile:
        if q[0] < 0 or q[-1] >= self.ids.shape[1]:
            return Tile.MIXED
        ours = self.ids[:, q[0] : q[-1] + 1].aminmax(dim=1)
        theirs = self.ids[:, k[0] : k[-1] + 1].aminmax(dim=1)
        if bool(((ours.max < theirs.min) | (theirs.max < ours.min)).all()):
            return Tile.EMPTY
        one = (ours.min == ours.max) & (theirs.min == theirs.max) & (ours.min == theirs.min)
        return Tile.FULL if bool(one.all()) else Tile.MIXED

    def tile_boundaries(self, stop: int) -> frozenset[int]:
        turns = (self.ids.diff(dim=1) != 0).any(0)[: max(stop - 1, 0)]
        return frozenset((turns.nonzero()[:, 0] + 1).tolist())

    @property
    def name(self) -> str:
        return f"documents(<{tuple(self.ids.shape)}>)"

    def required_sizes(self) -> dict[str, int]:
        return dict(zip(("B", "Lk"), self.ids.shape, strict=True))

    def resolve(self, shape: AttentionShape) -> Mask:
        batch, keys = self.ids.shape
        if not broadcasts(batch, shape.batch) or keys != shape.keys:
            reason = Text("assign a document number to every key")
            if self.summed:
                reason = Text(
                    "the lengths sum to {keys}, but must sum to Lk = {expected}",
                    keys=keys,
                    expected=shape.keys,
                )
            raise BadValue(
                "documents: made for (B, Lk) = {expected}, called with {got}; {reason}",
                expected=(batch, keys),
                got=(shape.batch, shape.keys),
                reason=reason,
            )
        return self


def documents(parts: Sequence[int] | Tensor) -> Mask:
    """Let each position attend only to its own document; combine with ``causal()`` for a decoder.

    Args:
        parts: the lengths of the documents in the sequence, in order; or an integer tensor (Lk,) or
            (B, Lk) with the document number of each position.

    Raises:
        BadType, BadValue: if ``parts`` is neither, a length is negative, their sum is above 2^31 -
            1, or, when called, if B or Lk do not fit.

    Source: Krell et al. 2021, packing without cross-contamination.

    Example:
        >>> from headwise.masks import causal
        >>> print((documents([1, 3]) & causal()).draw(4))
        ■ · · ·
        · ■ · ·
        · ■ ■ ·
        · ■ ■ ■
    """
    if isinstance(parts, Tensor):
        check_dense("documents", parts)
        ids = parts[None] if parts.dim() == 1 else parts
        if ids.dim() != 2 or ids.dtype not in INTEGERS:
            raise BadType(
                "documents: expected integers (Lk,) or (B, Lk), got {got}", got=describe(parts)
            )
        return Documents(ids.long())
    lengths = check_integers("documents", Text("length"), parts, Text("0 means an empty document"))
    check_integer("documents", Text("the sum of the lengths"), sum(lengths), 0)
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.long))
    return Documents(numbers[None], summed=True)
