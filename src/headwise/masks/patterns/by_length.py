"""Masks made from lengths: padding, a bidirectional prefix, and packed documents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from numbers import Integral
from typing import Any, Protocol

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks.arguments import INTEGERS, check_integers, needs_operator, without_numbers
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

    real: Tensor  # lengths (B,), or booleans (B, Lk), True on real keys
    prefix: bool = False  # whether `prefix` made it, for messages

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
        if self.real.dtype == torch.bool or without_numbers(self.real):
            return f"padding(<{self.real.dtype} {tuple(self.real.shape)}>)".replace("torch.", "")
        return f"padding({self.real.tolist()})"

    def required_sizes(self) -> dict[str, int]:
        return dict(zip(("B", "Lk"), self.real.shape, strict=False))

    def resolve(self, shape: AttentionShape) -> Mask:
        batch, maker = self.real.shape[0], "prefix" if self.prefix else "padding"
        if not broadcasts(batch, shape.batch):
            raise BadValue(
                "{maker}: made for a batch of {batch}, called with a batch of {got}; "
                "give one length, or one row, for each sample",
                maker=maker,
                batch=batch,
                got=shape.batch,
            )
        if self.real.dtype == torch.bool and self.real.shape[1] != shape.keys:
            raise BadValue(
                "{maker}: made for {real_shape_1} keys, called with {keys}; its shape is (B, Lk)",
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
    """Only real keys are attended to; padded ones never touch the result or a gradient.

    Args:
        real: the lengths, one integer for each sample, keys from there on being padding; or a
            boolean tensor (B, Lk), True on real keys. (PyTorch's ``key_padding_mask`` is its
            opposite: pass ``~key_padding_mask``.)

    Raises:
        BadType, BadValue: if it is neither, a length is negative or above 2^31 - 1, or B or Lk do
            not fit when called.

    Example:
        >>> print(padding([2]).draw(3))
        ■ ■ ·
        ■ ■ ·
        ■ ■ ·
    """
    blind = Text("0 makes every row of that sample blind")
    return Padding(_real_or_lengths("padding", real, blind))


def _real_or_lengths(mask: str, real: Sequence[int] | Tensor, zero: Text) -> Tensor:
    """Checked lengths (B,), or booleans (B, Lk); ``zero`` is the meaning of a length of 0."""
    if not isinstance(real, Tensor):
        return torch.tensor(check_integers(mask, Text("length"), real, zero), dtype=torch.int64)
    check_dense(mask, real)
    if real.dtype == torch.bool and real.dim() == 2:
        return real
    if real.dtype not in INTEGERS or real.dim() != 1:
        raise BadType(
            "{mask}: expected lengths (B,) as integers or a boolean tensor (B, Lk) that "
            "is True on real keys, got {got}; a tokenizer's mask, 1 on real keys, becomes boolean "
            "by mask.bool()",
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
    """Causal, but for a prefix that every query sees in both directions.

    It is ``causal() | padding(lengths)``.

    Args:
        lengths: how long the prefix is: one number for all samples, or one for each.

    Raises:
        BadType, BadValue: if a length is no integer, negative or above 2^31 - 1, or, when called,
            if B does not fit.

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

    ids: Tensor  # (B or 1, Lk), the document of each key
    summed: bool = False  # whether it was made from lengths, for messages
    query_ids: Tensor | None = None  # (B or 1, Lq), those of the queries, if not of their positions
    offset: int = 0  # the position of the first of them, once resolved

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        ids, queries = (ids.to(k.device) for ids in (self.ids, self._query_ids))
        if not ids.shape[1] or not queries.shape[1]:
            return torch.zeros_like(q + k, dtype=torch.bool)
        number = q - self.offset
        inside = (number >= 0) & (number < queries.shape[1])
        ours = _row(queries, b, number.clamp(0, queries.shape[1] - 1))
        return inside & (ours == _row(ids, b, k))

    def tile(self, q: range, k: range) -> Tile:
        first, last = q[0] - self.offset, q[-1] - self.offset
        if first < 0 or last >= self._query_ids.shape[1]:
            return Tile.MIXED
        ours = self._query_ids[:, first : last + 1].aminmax(dim=1)
        theirs = self.ids[:, k[0] : k[-1] + 1].aminmax(dim=1)
        if bool(((ours.max < theirs.min) | (theirs.max < ours.min)).all()):
            return Tile.EMPTY
        one = (ours.min == ours.max) & (theirs.min == theirs.max) & (ours.min == theirs.min)
        return Tile.FULL if bool(one.all()) else Tile.MIXED

    def tile_boundaries(self, stop: int, start: int = 0) -> frozenset[int]:
        turns = (self.ids.diff(dim=1) != 0).any(0)[: max(stop - 1, 0)]
        return frozenset((turns.nonzero()[:, 0] + 1).tolist())

    @property
    def _query_ids(self) -> Tensor:
        return self.ids if self.query_ids is None else self.query_ids

    @property
    def name(self) -> str:
        queries = "" if self.query_ids is None else f"<{tuple(self.query_ids.shape)}>, "
        return f"documents({queries}<{tuple(self.ids.shape)}>)"

    def required_sizes(self) -> dict[str, int]:
        sizes = dict(zip(("B", "Lk"), self.ids.shape, strict=True))
        if self.query_ids is None:
            return sizes
        return {**sizes, "B": max(sizes["B"], len(self.query_ids)), "Lq": self.query_ids.shape[1]}

    def resolve(self, shape: AttentionShape) -> Mask:
        if self.query_ids is not None:
            self._check_queries(self.query_ids, shape)
        batch, keys = self.ids.shape
        if not broadcasts(batch, shape.batch) or keys != shape.keys:
            reason = Text("number every position of the keys")
            if self.summed:
                reason = Text(
                    "the lengths sum to {keys}, and have to sum to Lk = {expected}",
                    keys=keys,
                    expected=shape.keys,
                )
            raise BadValue(
                "documents: made for (B, Lk) = {expected}, called with {got}; {reason}",
                expected=(batch, keys),
                got=(shape.batch, shape.keys),
                reason=reason,
            )
        return self if self.query_ids is None else replace(self, offset=shape.offset)

    def _check_queries(self, ids: Tensor, shape: AttentionShape) -> None:
        batch, queries = ids.shape
        if not broadcasts(batch, shape.batch) or queries != shape.queries:
            raise BadValue(
                "documents: the queries were numbered for (B, Lq) = {expected}, called with {got}; "
                "number every query",
                expected=(batch, queries),
                got=(shape.batch, shape.queries),
            )


def _row(ids: Tensor, b: Index, position: Index) -> Tensor:
    return ids[b if len(ids) > 1 else zero_index(b), position]


class DocumentsFunction(Protocol):
    """The function `documents`, and the one of flash-attn's arguments."""

    __name__: str
    from_cu_seqlens: Callable[..., Mask]

    def __call__(
        self, parts: Sequence[int] | Tensor, key_parts: Sequence[int] | Tensor | None = None
    ) -> Mask: ...


def _with_from_cu_seqlens(function: Callable[..., Mask]) -> DocumentsFunction:
    named: Any = function
    named.from_cu_seqlens = documents_from_cu_seqlens
    result: DocumentsFunction = named
    return result


def documents_from_cu_seqlens(
    cu_seqlens_q: Sequence[int] | Tensor, cu_seqlens_k: Sequence[int] | Tensor | None = None
) -> Mask:
    """`documents` from the cumulative lengths that flash-attn's functions for packed texts take.

    ``causal()`` counts positions from the start of the whole sequence: together with it, give the
    same lengths for queries and keys.

    Args:
        cu_seqlens_q: 0, the length of the first document, that of the first two, and so on.
        cu_seqlens_k: the same for the keys, of as many documents; None means the same lengths.

    Raises:
        BadType, BadValue: if one is no sequence of integers that starts at 0 and never falls, or
            they have different numbers of documents.

    Example:
        >>> print(documents.from_cu_seqlens([0, 1, 3]).draw(3))
        ■ · ·
        · ■ ■
        · ■ ■
    """
    lengths = _lengths("cu_seqlens_q", cu_seqlens_q)
    if cu_seqlens_k is None:
        return documents(lengths)
    key_lengths = _lengths("cu_seqlens_k", cu_seqlens_k)
    if len(lengths) != len(key_lengths):
        raise BadValue(
            "documents: cu_seqlens_q has {queries} documents and cu_seqlens_k {keys}; give the "
            "keys of every document, 0 where it has none",
            queries=len(lengths),
            keys=len(key_lengths),
        )
    return documents(lengths, key_lengths)


def _lengths(argument: str, cumulative: object) -> list[int]:
    """The lengths whose sums are given."""
    listed = cumulative.tolist() if isinstance(cumulative, Tensor) else cumulative
    sums = check_integers("documents", Text("sum of lengths"), listed, Text("the first sum is 0"))
    lengths = [after - before for before, after in pairwise(sums)]
    if not sums or sums[0] or min(lengths, default=0) < 0:
        raise BadValue(
            "documents: {argument} must start at 0 and never fall, got {sums}; for lengths 3 and "
            "5 it is [0, 3, 8]",
            argument=argument,
            sums=sums,
        )
    return lengths


@_with_from_cu_seqlens
def documents(
    parts: Sequence[int] | Tensor, key_parts: Sequence[int] | Tensor | None = None
) -> Mask:
    """Each position sees its own document only. Add ``causal()`` for a language model.

    Args:
        parts: the lengths of the documents in the sequence, one after the other; or an integer
            tensor (Lk,) or (B, Lk) that numbers the document of each position.
        key_parts: the same for the keys, where these are another sequence, as in cross-attention
            of packed texts; ``parts`` are then those of the queries, (Lq,) or (B, Lq).

    Raises:
        BadType, BadValue: if it is neither, a length is negative, their sum is above 2^31 - 1, or,
            when called, B, Lq or Lk do not fit.

    Source: Krell et al. 2021, packing without cross-contamination.

    Example:
        >>> from headwise.masks import causal
        >>> print((documents([1, 3]) & causal()).draw(4))
        ■ · · ·
        · ■ · ·
        · ■ ■ ·
        · ■ ■ ■
        >>> print(documents([1, 1], [3, 2]).draw(2, 5))
        ■ ■ ■ · ·
        · · · ■ ■
    """
    keys = parts if key_parts is None else key_parts
    queries = None if key_parts is None else _numbers(parts)
    return Documents(_numbers(keys), not isinstance(keys, Tensor), queries)


def _numbers(parts: Sequence[int] | Tensor) -> Tensor:
    """The document of each position, (B or 1, L)."""
    if isinstance(parts, Tensor):
        check_dense("documents", parts)
        ids = parts[None] if parts.dim() == 1 else parts
        if ids.dim() != 2 or ids.dtype not in INTEGERS:
            raise BadType(
                "documents: expected integers (Lk,) or (B, Lk), got {got}", got=describe(parts)
            )
        return ids.long()
    lengths = check_integers("documents", Text("length"), parts, Text("a document of 0 is none"))
    check_integer("documents", Text("the sum of the lengths"), sum(lengths), 0)
    counts, total = torch.tensor(lengths, dtype=torch.long), sum(lengths)
    return torch.arange(len(lengths)).repeat_interleave(counts, output_size=total)[None]
