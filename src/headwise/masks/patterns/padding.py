"""Masks made from lengths: padded keys, and a bidirectional prefix."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks.arguments import INTEGERS, check_integers
from headwise.masks.mask import Mask, Tile
from headwise.masks.patterns.causal import causal
from headwise.shapes import AttentionShape, Index, Truth, check_dense


@dataclass(frozen=True, repr=False, eq=False)
class Padding(Mask):
    """The mask of `padding`: lengths (B,), or a boolean (B, Lk) that is True on real keys.

    ``prefix`` says that it was made by `prefix`, which messages then name.
    """

    real: Tensor
    prefix: bool = False

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        del h, q
        real = self.real.to(k.device)
        return real[b, k] if real.dtype == torch.bool else k < real[b]

    def tile(self, q: range, k: range) -> Tile:
        del q
        if self.real.dtype != torch.bool:
            shortest, longest = self._extremes
            if k[-1] < shortest:
                return Tile.FULL
            return Tile.EMPTY if k[0] >= longest else Tile.MIXED
        part = self.real[:, k[0] : k[-1] + 1]
        if bool(part.all()):
            return Tile.FULL
        return Tile.MIXED if bool(part.any()) else Tile.EMPTY

    @property
    def name(self) -> str:
        if self.real.dtype == torch.bool:
            return f"padding(<bool {tuple(self.real.shape)}>)"
        return f"padding({self.real.tolist()})"

    def required_sizes(self) -> dict[str, int]:
        return dict(zip(("B", "Lk"), self.real.shape, strict=False))

    def resolve(self, shape: AttentionShape) -> Mask:
        batch, maker = self.real.shape[0], "prefix" if self.prefix else "padding"
        if batch not in (1, shape.batch):
            raise BadValue(
                "{maker}: made for a batch of {batch}, called with a batch of {batch_2}; "
                "give one length, or one row, for each sample",
                maker=maker,
                batch=batch,
                batch_2=shape.batch,
            )
        if self.real.dtype == torch.bool and self.real.shape[1] != shape.keys:
            raise BadValue(
                "{maker}: made for {real_shape_1} keys, called with {keys}; its shape is (B, Lk)",
                maker=maker,
                real_shape_1=self.real.shape[1],
                keys=shape.keys,
            )
        return replace(self, real=self.real.expand(shape.batch, *self.real.shape[1:]))

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
        BadType: if it is neither.
        BadValue: if a length is negative or above 2^31 - 1, or, when called, if B or Lk do not
            fit.

    Example:
        >>> print(padding([2]).draw(3))
        ■ ■ ·
        ■ ■ ·
        ■ ■ ·
    """
    blind = Text("0 makes every row of that sample blind")
    return Padding(real_or_lengths("padding", real, blind))


def real_or_lengths(mask: str, real: Sequence[int] | Tensor, zero: Text) -> Tensor:
    """Checked lengths (B,), or booleans (B, Lk).

    Args:
        mask: who asks.
        real: lengths or booleans, as for `padding`.
        zero: what a length of 0 means there.

    Raises:
        BadType: if it is neither.
        BadValue: if a length is negative or too large.
    """
    if not isinstance(real, Tensor):
        return torch.tensor(check_integers(mask, Text("length"), real, zero), dtype=torch.int64)
    check_dense(mask, tensor := real)
    if tensor.dtype == torch.bool and tensor.dim() == 2:
        return tensor
    if tensor.dtype not in INTEGERS or tensor.dim() != 1:
        raise BadType(
            "{mask}: expected lengths (B,) as integers or a boolean tensor (B, Lk) that "
            "is True on real keys, got {tensor_dtype} {tensor_shape}",
            mask=mask,
            tensor_dtype=tensor.dtype,
            tensor_shape=tuple(tensor.shape),
        )
    if not torch.compiler.is_compiling() and bool((tensor < 0).any()):
        raise BadValue(
            "{mask}: a length must be >= 0, got {least}; {zero}",
            mask=mask,
            least=tensor.min().item(),
            zero=zero,
        )
    return tensor.long()


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
        >>> print(prefix(2).draw(4))
        ■ ■ · ·
        ■ ■ · ·
        ■ ■ ■ ·
        ■ ■ ■ ■
    """
    per_sample = [lengths] if isinstance(lengths, int) else lengths
    nothing = Text("0 is causal()")
    return causal() | Padding(real_or_lengths("prefix", per_sample, nothing), prefix=True)
