"""Keys that are padding are never attended to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.masks.base import Mask, Tile
from headwise.masks.checks import INTEGERS, integers
from headwise.shapes import Frame, Index, Truth, dense


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

    def resolve(self, frame: Frame) -> Mask:
        batch, maker = self.real.shape[0], "prefix" if self.prefix else "padding"
        if batch not in (1, frame.batch):
            raise BadValue(
                f"{maker}: made for a batch of {batch}, called with a batch of {frame.batch}; "
                "give one length, or one row, for each sample",
                f"{maker}：按批大小 {batch} 构造，调用时批大小为 {frame.batch}；"
                "请为每个样本给出一个长度或一行",
            )
        if self.real.dtype == torch.bool and self.real.shape[1] != frame.keys:
            raise BadValue(
                f"{maker}: made for {self.real.shape[1]} keys, called with {frame.keys}; "
                "its shape is (B, Lk)",
                f"{maker}：按 {self.real.shape[1]} 个键构造，调用时有 {frame.keys} 个键；"
                "形状应为 (B, Lk)",
            )
        return replace(self, real=self.real.expand(frame.batch, *self.real.shape[1:]))

    def real_keys(self, frame: Frame) -> Tensor:
        b, h, q, k = (index.flatten() for index in frame.indices())
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
    blind = ("0 makes every row of that sample blind", "长度 0 表示该样本每一行都看不到键")
    return Padding(real_or_lengths("padding", real, blind))


def real_or_lengths(mask: str, real: Sequence[int] | Tensor, zero: tuple[str, str]) -> Tensor:
    """Checked lengths (B,), or booleans (B, Lk).

    Args:
        mask: who asks.
        real: lengths or booleans, as for `padding`.
        zero: what a length of 0 means there, in both languages.

    Raises:
        BadType: if it is neither.
        BadValue: if a length is negative or too large.
    """
    if not isinstance(real, Tensor):
        return torch.tensor(integers(mask, ("length", "长度"), real, zero), dtype=torch.int64)
    dense(mask, tensor := real)
    if tensor.dtype == torch.bool and tensor.dim() == 2:
        return tensor
    if tensor.dtype not in INTEGERS or tensor.dim() != 1:
        raise BadType(
            f"{mask}: expected lengths (B,) as integers or a boolean tensor (B, Lk) that is True "
            f"on real keys, got {tensor.dtype} {tuple(tensor.shape)}",
            f"{mask}：应为整数长度 (B,)，或在真实的键上为 True 的布尔张量 (B, Lk)；"
            f"收到 {tensor.dtype} {tuple(tensor.shape)}",
        )
    if not torch.compiler.is_compiling() and bool((tensor < 0).any()):
        raise BadValue(
            f"{mask}: a length must be >= 0, got {tensor.min().item()}; {zero[0]}",
            f"{mask}：长度必须 >= 0，收到 {tensor.min().item()}；{zero[1]}",
        )
    return tensor.long()
