"""The engine as a function that autograd knows: its own backward, and derivatives of that."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.engines import sinks as sinking
from headwise.engines.derivatives import again
from headwise.engines.tiled.backward import backward
from headwise.engines.tiled.dense import dense
from headwise.engines.tiled.forward import forward
from headwise.engines.tiled.kernel import Given
from headwise.engines.tiled.sums import Sums
from headwise.engines.tiled.visible import without_hidden
from headwise.engines.tiled.work import Work
from headwise.masks import Mask
from headwise.positions import Position
from headwise.positions.base import Far
from headwise.positions.relative import Relative
from headwise.shapes import Frame

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False)
class Setting:
    """What stays the same whatever the tensors are.

    Attributes:
        mask, position, scale, frame: as in `Work`.
        relative: which of the position's `Relative` are among the tensors.
        reach: from which distance far keys and values among the tensors stand for k and v, or None.
        sinks: whether sinks are among the tensors.
    """

    mask: Mask
    position: Position
    scale: float
    frame: Frame
    relative: tuple[bool, ...] = (False, False, False)
    reach: int | None = None
    sinks: bool = False

    @property
    def count(self) -> int:
        """How many of the tensors a `Work` holds."""
        return 4 + sum(self.relative) + (0 if self.reach is None else 4) + self.sinks

    def work(self, tensors: Sequence[Tensor]) -> Work:
        """The attention of q, k, v, asked; then what else there is, in that order."""
        q, k, v, asked, *more = tensors[: self.count]
        relative = Relative(*(more.pop(0) if there else None for there in self.relative))
        sinks = more.pop() if self.sinks else None
        far = None
        if self.reach is not None:
            far = Far(self.reach, (more[0], more[1]), (more[2], more[3]))
        fixed = self.mask, self.position, self.scale, self.frame
        known = relative if any(self.relative) else None
        return Work(q, k, v, asked, *fixed, known, far, sinks)

    def gradients(self, sums: Sums) -> list[Tensor | None]:
        """The gradients of those tensors, but for sinks, in their order."""
        known = [each for each in sums.relative if each is not None]
        return [sums.q, sums.k, sums.v, sums.asked, *known, *sums.far]


class Tiled(torch.autograd.Function):
    """Output and logsumexp of (setting, the tensors of a `Work`, and what the bias is made of).

    Autocast is off inside: the tensors are computed with as they come, the bias in float32.
    """

    @staticmethod
    def forward(ctx: Any, setting: Setting, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(tensors[0].device.type, enabled=False):
            output, logsumexp = forward(setting.work(tensors))
        ctx.setting = setting
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output, logsumexp)
        return output, logsumexp

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        with torch.autocast(ctx.setting.frame.device.type, enabled=False):
            return Tiled._backward(ctx, gradients)

    @staticmethod
    def _backward(ctx: Any, gradients: tuple[Tensor | None, ...]) -> Gradients:
        *tensors, output, logsumexp = ctx.saved_tensors
        wanted, setting = ctx.needs_input_grad[1:], ctx.setting
        if torch.is_grad_enabled():
            return (None, *_twice(setting, tensors, wanted, gradients))
        grad, grad_sums = gradients
        given = Given(
            torch.zeros_like(output) if grad is None else grad.contiguous(), output, logsumexp
        )
        work, rest = without_hidden(setting.work(tensors)), setting.count
        learned = [t for t, want in zip(tensors[rest:], wanted[rest:], strict=True) if want]
        sums = backward(work, given, grad_sums, learned)
        others = iter(sums.learned)
        every = setting.gradients(sums)
        if work.sinks is not None:
            results = given.grad, given.output, given.logsumexp
            every.append(sinking.gradient(work.sinks, *results, grad_sums))
        own = zip(every, tensors[:rest], strict=True)
        found = [None if each is None else each.to(tensor.dtype) for each, tensor in own]
        return (None, *found, *(next(others) if want else None for want in wanted[rest:]))


def tiled(setting: Setting, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Output (B, H, Lq, Dv) and logsumexp (B, H, Lq).

    Args:
        setting: mask, position, scale and frame.
        tensors: those of `Setting.work`: q and k turned by the position, v, q as asked, ...; then
            what else the bias, or what is added to the values, is made of.
    """
    apply: Callable[..., tuple[Tensor, Tensor]] = Tiled.apply
    return apply(setting, *tensors)


def _twice(
    setting: Setting,
    tensors: list[Tensor],
    wanted: tuple[bool, ...],
    gradients: tuple[Tensor | None, ...],
) -> list[Tensor | None]:
    """The gradients as functions that can be differentiated again, with the scores written out."""

    def plain(given: list[Tensor | None]) -> tuple[Tensor, Tensor]:
        return dense(without_hidden(setting.work([each for each in given if each is not None])))

    held, learned = tensors[: setting.count], tensors[setting.count :]
    return again(plain, held, wanted, gradients, learned)
