"""Dropout with a backward of its own, for what is neither biased nor has sinks.

With P the weights over all keys and M = 1/(1-p) where a pair is kept, 0 elsewhere,

    O = (M P) V      dS = P (M dO Vᵀ - Δ)      Δ = rowsum(dO O)

A backward that is told the logsumexp over all keys takes Δ from the output that it is given. Over
the kept pairs, given dO/(1-p) and an output of 0, it gives P M dO Vᵀ and the gradient of V; over
all pairs, given dO, O and values of 0, it gives the rest, -P Δ.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.engines.derivatives import again
from headwise.engines.dropping import Keep, numbered, share_kept
from headwise.engines.tiled import kernel
from headwise.engines.tiled.backward import backward
from headwise.engines.tiled.dense import dense
from headwise.engines.tiled.forward import forward
from headwise.engines.tiled.function import Gradients, Setting
from headwise.engines.tiled.kernel import Given
from headwise.engines.tiled.visible import without_hidden
from headwise.engines.tiled.work import Work
from headwise.positions import Stage


def plain(call: Call) -> bool:
    """Whether a call is of the kind that this file differentiates."""
    acts = {Stage.SCORES, Stage.VALUES} & call.position.stages
    beside = call.mask.biased or acts or call.sinks is not None
    return not beside and call.dropout < 1 and "logsumexp" not in call.need


class Dropped(torch.autograd.Function):
    """The output of (setting, which pairs are kept, q, k, v, q as asked)."""

    @staticmethod
    def forward(ctx: Any, setting: Setting, keep: Keep, *tensors: Tensor) -> Tensor:
        with torch.autocast(tensors[0].device.type, enabled=False):
            work = setting.work(tensors)
            _, whole = forward(work)
            output, some = forward(replace(work, mask=work.mask & keep))
            output = (output * share_kept(some, whole, keep.dropout)).to(output.dtype)
        ctx.setting, ctx.keep = setting, keep
        ctx.save_for_backward(*tensors, output, whole)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        *tensors, output, whole = ctx.saved_tensors
        setting, keep = ctx.setting, ctx.keep
        with torch.autocast(setting.frame.device.type, enabled=False):
            if torch.is_grad_enabled():
                return (None, None, *_twice(setting, keep, tensors, ctx, gradients))
            work, grad = without_hidden(setting.work(tensors)), gradients[0].contiguous()
            products = Given(grad / (1 - keep.dropout), torch.zeros_like(output), whole)
            kept = backward(replace(work, mask=work.mask & keep), products)
            silent = replace(work, v=torch.zeros_like(work.v))
            every = backward(silent, Given(grad, output, whole))
        found = (kept.q + every.q, kept.k + every.k, kept.v)
        own = (each.to(tensor.dtype) for each, tensor in zip(found, tensors, strict=False))
        return (None, None, *own, None)


def dropped(call: Call) -> Result:
    """The output of a call that is `plain`."""
    q, k = call.position.content(call.q, call.k, call.frame)
    q, k, v, asked = (kernel.packed(t) for t in (q, k, call.v, call.q))
    width = v.shape[3]
    if kernel.fused(q):
        q, k, v = kernel.even(q, k, v)
    setting = Setting(call.mask, call.position, call.scale, call.frame)
    apply: Callable[..., Tensor] = Dropped.apply
    output = apply(setting, Keep(call.dropout, numbered()), q, k, v, asked)
    return Result(output[..., :width].to(call.v.dtype))


def _twice(
    setting: Setting,
    keep: Keep,
    tensors: list[Tensor],
    ctx: Any,
    gradients: tuple[Tensor, ...],
) -> list[Tensor | None]:
    """The gradients as functions that can be differentiated again, with the scores written out."""

    def written(given: list[Tensor | None]) -> tuple[Tensor]:
        work: Work = without_hidden(setting.work([each for each in given if each is not None]))
        _, whole = dense(work)
        output, some = dense(replace(work, mask=work.mask & keep))
        return ((output * share_kept(some, whole, keep.dropout)).to(output.dtype),)

    return again(written, tensors, ctx.needs_input_grad[2:], gradients, [])
