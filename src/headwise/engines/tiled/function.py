"""The engine as a function that autograd knows: its own backward, and derivatives of that."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.engines.tiled.backward import backward, backward_of_all
from headwise.engines.tiled.dense import dense
from headwise.engines.tiled.forward import by_weights, forward
from headwise.engines.tiled.kernel import Given
from headwise.engines.tiled.visible import without_hidden
from headwise.engines.tiled.work import Work
from headwise.masks import Mask
from headwise.positions import Position, Stage
from headwise.shapes import Frame

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False)
class Setting:
    """What stays the same whatever the tensors are."""

    mask: Mask
    position: Position
    scale: float
    frame: Frame

    def work(self, q: Tensor, k: Tensor, v: Tensor, asked: Tensor) -> Work:
        """The attention of these tensors."""
        return Work(q, k, v, asked, self.mask, self.position, self.scale, self.frame)


class Tiled(torch.autograd.Function):
    """Output and logsumexp of (setting, q, k, v, asked, and what the bias is made of).

    Autocast is off inside: the tensors are computed with as they come, the bias in float32.
    """

    @staticmethod
    def forward(ctx: Any, setting: Setting, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(tensors[0].device.type, enabled=False):
            output, logsumexp = forward(setting.work(*tensors[:4]))
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
        wanted = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            return (None, *_twice(ctx.setting, tensors, wanted, gradients))
        grad, grad_sums = gradients
        given = Given(
            torch.zeros_like(output) if grad is None else grad.contiguous(), output, logsumexp
        )
        work = without_hidden(ctx.setting.work(*tensors[:4]))
        if grad_sums is None and not by_weights(work) and not _moves(work, tensors[4:]):
            return (None, *backward(work, given), *(None for _ in tensors[3:]))
        learned = [t for t, want in zip(tensors[4:], wanted[4:], strict=True) if want]
        own, others = backward_of_all(work, given, grad_sums, learned)
        found = iter(others)
        rest = [next(found) if want else None for want in wanted[4:]]
        casts = zip(own, tensors[:4], strict=True)
        return (None, *(g.to(t.dtype) for g, t in casts), *rest)


def tiled(
    setting: Setting, q: Tensor, k: Tensor, v: Tensor, asked: Tensor, *learned: Tensor
) -> tuple[Tensor, Tensor]:
    """Output (B, H, Lq, Dv) and logsumexp (B, H, Lq) of turned q and k, of v, and of q as asked.

    Args:
        setting: mask, position, scale and frame.
        q: the queries, turned by the position.
        k: the keys, turned.
        v: the values.
        asked: the queries as given, which the position's bias looks at.
        learned: what else the bias, or what is added to the values, is made of.
    """
    apply: Callable[..., tuple[Tensor, Tensor]] = Tiled.apply
    return apply(setting, q, k, v, asked, *learned)


def _moves(work: Work, learned: list[Tensor]) -> bool:
    """Whether the bias depends on the queries or on anything learned."""
    if any(tensor.requires_grad for tensor in learned):
        return True
    if Stage.SCORES not in work.position.stages or not work.asked.requires_grad:
        return False
    with torch.enable_grad():
        one = work.asked[:, :, :1].detach().requires_grad_()
        _, _, queries, keys = work.frame.indices()
        bias = work.position.bias(one, queries.flatten()[:1], keys.flatten()[:1], work.scale)
    return bias is not None and bias.requires_grad


def _twice(
    setting: Setting,
    tensors: list[Tensor],
    wanted: tuple[bool, ...],
    gradients: tuple[Tensor | None, ...],
) -> list[Tensor | None]:
    """The gradients as functions that can be differentiated again, with the scores written out."""
    q, k, v, asked = (t.view_as(t) for t in tensors[:4])
    results = dense(without_hidden(setting.work(q, k, v, asked)))
    pairs = [
        (result, grad)
        for result, grad in zip(results, gradients, strict=True)
        if grad is not None and result.requires_grad
    ]
    inputs = [q, k, v, asked, *tensors[4:]]
    chosen = [t for t, want in zip(inputs, wanted, strict=True) if want]
    if not pairs or not chosen:
        return [None for _ in inputs]
    outputs, grads = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, chosen, grads, create_graph=True, allow_unused=True))
    return [next(found) if want else None for want in wanted]
